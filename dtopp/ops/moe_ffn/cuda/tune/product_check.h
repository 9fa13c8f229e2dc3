// Decides which expert GEMMs of moe_ffn use dtopp's fused kernels on a CUDA device: those that are correct
// and faster than torch's.
//
// Each kernel is tried in a child process, because a wrong kernel may crash or hang. The check runs once per
// kind of device, driver and library.
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
  std::filesystem::path directory;  // of the stored tables; empty: none is stored
  // Builds the child that checks one GEMM; the second argument selects the fused kernels in use. The answer
  // is the last output line that starts with '{': checked_product_json or {"unchecked": reason}.
  std::function<ChildProgram(ExpertGemm, const FusedKernelSet&)> child;
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // time limit per child
  std::function<void(const std::string&)> log;
};

// The user's choice in DTOPP_MOE_PRODUCTS, if it is set. UsageError if it is invalid.
std::optional<FusedKernelSet> requested_kernels();

// The stored table; nullopt if no usable one exists.
std::optional<ProductTable> kept_products(const ProductCheck& check);

// Returns the stored table, or runs the check and stores its result.
//
// One of several processes checks while the others wait for it, even on different hosts that share the
// directory. Logs the result, and warns if a fused kernel is wrong, crashes or hangs; torch's kernel is then
// used. Returns nullopt and logs the reason if the device cannot run a check now.
std::optional<ProductTable> check_products(const ProductCheck& check, bool again = false);

// The check for a CUDA device, which runs this program as `dtopp check-product`.
ProductCheck product_check_of(const at::Device& device, std::function<void(const std::string&)> log);

// Selects the kernels before training on the device. DTOPP_MOE_PRODUCTS takes precedence over the check.
//
// There is no check for dense models and fp32, which have no fused kernels, nor with training.deterministic,
// where bits must not depend on measured speed.
void choose_products(const RunConfig& config, const at::Device& device,
                     const std::function<void(const std::string&)>& log);

}  // namespace dtopp
