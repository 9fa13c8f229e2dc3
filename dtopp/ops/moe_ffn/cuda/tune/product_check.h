// Which of moe_ffn's products own kernels form on a CUDA device: those that are right there, and faster than
// torch's. Each is tried in a child process, because a wrong kernel may crash or hang; once for a kind of
// device, its driver and the library.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/moe_ffn/cuda/tune/product_table.h"

namespace dtopp {

struct ProductCheck {
  CheckedDevice device;
  std::filesystem::path directory;  // of tables; empty: none is kept
  // What checks a product, those of the second argument being by own kernels: its last line that begins with
  // '{' is the answer, checked_product_json or {"unchecked": why}.
  std::function<ChildProgram(MoeProduct, const OwnProducts&)> child;
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // of one
  std::function<void(const std::string&)> say;
};

// What DTOPP_MOE_PRODUCTS says, if anything. UsageError where that means nothing.
std::optional<OwnProducts> wished_products();

// nullopt where there is none that can be used.
std::optional<ProductTable> kept_products(const ProductCheck& check);

// The table that is kept, or of a check now, which is kept then. Of several processes one checks, on whatever
// hosts share the directory, and the others wait for it. Says what was found, and warns of an own kernel that
// is wrong, crashes or hangs: torch's is taken. nullopt, having said why, where the device cannot be used for
// a check now.
std::optional<ProductTable> check_products(const ProductCheck& check, bool again = false);

// Of a CUDA device, by this program: `dtopp check-product`.
ProductCheck product_check_of(const at::Device& device, std::function<void(const std::string&)> say);

// For who is about to train on the device: its products are by own kernels where the check says so, unless
// DTOPP_MOE_PRODUCTS does. Not checked are products of a model without
// experts and in fp32, which own kernels do not form; nor with training.deterministic, whose bits must not
// hang on what was faster.
void choose_products(const RunConfig& config, const at::Device& device,
                     const std::function<void(const std::string&)>& say);

}  // namespace dtopp
