#include "dtopp/ops/moe_ffn/cuda/tune/product_check.h"

#include <array>
#include <cstdio>
#include <sstream>
#include <thread>
#include <utility>

#include <sys/file.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/launch/timed_child.h"

namespace dtopp {
namespace {

using Clock = std::chrono::steady_clock;

// Lets one of several processes check at a time. The wait is limited, so a file system without locks or a
// hanging check elsewhere does not block forever.
class CheckLock {
 public:
  CheckLock(std::filesystem::path path, std::chrono::milliseconds limit)
      : path_(std::move(path)), file_(path_, O_RDWR | O_CREAT, "open") {
    const auto end = Clock::now() + limit;
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
           Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

// Returns the text after `mark` in the last line that starts with it.
std::string last_line_after(const std::string& mark, const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(mark)) last = line.substr(mark.size());
  return last;
}

// Throws ResourceError if the device cannot run the check now.
CheckedProduct check_product(const ProductCheck& check, ExpertGemm product, const FusedKernelSet& fused) {
  const TimedChildEnd end = run_timed_child(check.child(product, fused), check.limit);
  CheckedProduct failed{.product = product, .failure = end.failure};
  if (!end.failure.empty()) {
    const std::string cause = last_line_after("dtopp: error: ", end.output);
    if (!cause.empty()) failed.failure += ": " + cause;
    return failed;
  }
  try {
    const JsonFields answer("{" + last_line_after("{", end.output), "check-product");
    if (answer.has("unchecked")) throw ResourceError(answer.text("unchecked"));
    CheckedProduct checked = read_checked_product(answer);
    if (checked.product == product) return checked;
  } catch (const DataError&) {  // handled like a missing answer
  }
  failed.failure = "no readable answer";
  return failed;
}

ProductTable check_all(const ProductCheck& check) {
  ProductTable table;
  for (size_t p = 0; p < kExpertGemmNames.size(); ++p)
    table.push_back(check_product(check, static_cast<ExpertGemm>(p), taken_products(table)));
  return table;
}

std::string number_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

void report(const ProductCheck& check, const ProductTable& table) {
  std::string found;
  for (const CheckedProduct& checked : table) {
    const std::string name(checked.name());
    found += (found.empty() ? "" : ", ") + name + (checked.is_fused_taken() ? " own" : " grouped_mm");
    if (checked.is_right()) {
      found += " (own " + number_text(checked.fused_milliseconds) + " ms, grouped_mm " +
               number_text(checked.grouped_milliseconds) + ")";
      continue;
    }
    check.log(
        "warning: moe_ffn: " + name + " uses grouped_mm, because dtopp's fused kernel is wrong on " +
        check.device.name + ": " +
        (checked.failure.empty() ? "an error of " + number_text(checked.fused_error) : checked.failure));
  }
  check.log("moe_ffn on " + check.device.name + ": " + found);
}

}  // namespace

std::optional<FusedKernelSet> requested_kernels() {
  try {
    return requested_fused_kernels();
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

std::optional<ProductTable> kept_products(const ProductCheck& check) {
  if (check.directory.empty()) return std::nullopt;
  return read_product_table(product_table_path(check.directory, check.device), check.device);
}

std::optional<ProductTable> check_products(const ProductCheck& check, bool again) {
  const auto kept = [&] { return again ? std::nullopt : kept_products(check); };
  if (auto table = kept()) return table;
  std::optional<CheckLock> lock;
  std::string unkept;
  try {
    if (check.directory.empty()) throw DataError("neither XDG_CACHE_HOME nor HOME names a directory");
    make_directories(check.directory);
    lock.emplace(check.directory / "products.lock", (kExpertGemmNames.size() + 1) * check.limit);
    if (auto table = kept()) return table;
  } catch (const DataError& error) {
    unkept = error.what();
  }
  check.log("checking once which expert GEMM kernels to use on " + check.device.name);
  ProductTable table;
  try {
    table = check_all(check);
  } catch (const ResourceError& error) {
    check.log("warning: the check cannot run now, so grouped_mm is used: " + std::string(error.what()));
    return std::nullopt;
  }
  report(check, table);
  try {
    if (unkept.empty())
      write_product_table(product_table_path(check.directory, check.device), check.device, table);
  } catch (const DataError& error) {
    unkept = error.what();
  }
  if (!unkept.empty())
    check.log("warning: the result cannot be stored, so every start will check again: " + unkept);
  return table;
}

ProductCheck product_check_of(const at::Device& device, std::function<void(const std::string&)> log) {
  const DeviceFacts facts = device_facts(device);
  return {.device = {facts.name, facts.driver, hash_file(cuda_library())},
          .directory = product_table_directory(),
          .child =
              [index = std::to_string(device.index())](ExpertGemm product, const FusedKernelSet& fused) {
                return ChildProgram{.program = own_program(),
                                    .arguments = {"dtopp", "check-product",
                                                  std::string(kExpertGemmNames[static_cast<size_t>(product)]),
                                                  "--own", fused_kernels_text(fused), "--device", index},
                                    .environment = own_environment()};
              },
          .log = std::move(log)};
}

void choose_products(const RunConfig& config, const at::Device& device,
                     const std::function<void(const std::string&)>& log) {
  if (device.is_cpu() || config.model.is_dense() ||
      compute_type(config.training.precision, device) != at::kBFloat16)
    return;
  if (requested_kernels() || config.training.deterministic ||
      device_facts(device).capability < kFusedMinCapability)
    return;
  if (const auto table = check_products(product_check_of(device, log)))
    set_fused_kernels(taken_products(*table));
}

}  // namespace dtopp
