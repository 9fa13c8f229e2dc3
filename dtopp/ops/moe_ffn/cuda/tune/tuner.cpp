#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"

#include <sstream>
#include <thread>

#include <sys/file.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/device/device.h"
#include "dtopp/launch/timed_child.h"

namespace dtopp::ops {
namespace {

using Clock = std::chrono::steady_clock;

// Lets one of several processes test at a time. The wait is limited, so a file system without locks or a
// hanging test elsewhere does not block forever.
void wait_for_lock(const Descriptor& file, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
         Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// Returns the text after `mark` in the last line that starts with it.
std::string last_line_after(const std::string& mark, const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(mark)) last = line.substr(mark.size());
  return last;
}

// Throws ResourceError if the device cannot run the test now.
TunedGemm tune_gemm(const Tuner& tuner, ExpertGemm gemm, const FusedKernelSet& fused) {
  TunedGemm failed{.gemm = gemm};
  launch::ChildProgram child = tuner.child;
  for (const std::string& argument : {failed.name(), std::string("--fused"), fused_kernels_text(fused)})
    child.arguments.push_back(argument);
  const launch::TimedChildEnd end = launch::run_timed_child(child, tuner.limit);
  failed.failure = end.failure;
  if (!end.failure.empty()) {
    const std::string cause = last_line_after("dtopp: error: ", end.output);
    if (!cause.empty()) failed.failure += ": " + cause;
    return failed;
  }
  try {
    const JsonFields answer("{" + last_line_after("{", end.output), "check-gemm");
    if (answer.has("unchecked")) throw ResourceError(answer.text("unchecked"));
    TunedGemm tuned = read_tuned_gemm(answer);
    if (tuned.gemm == gemm) return tuned;
  } catch (const DataError&) {  // handled like a missing answer
  }
  failed.failure = "no readable answer";
  return failed;
}

void print_result(const Tuner& tuner, const KernelTable& table) {
  std::string found;
  for (const TunedGemm& tuned : table) {
    found += (found.empty() ? "" : ", ") + tuned.name() + " " + tuned.kernel();
    if (tuned.is_right()) {
      found += " (fused " + format("%.3g", tuned.fused_milliseconds) + " ms, grouped_mm " +
               format("%.3g", tuned.grouped_milliseconds) + " ms)";
      continue;
    }
    tuner.print("warning: moe_ffn: " + tuned.name() +
                " uses grouped_mm, because dtopp's fused kernel is wrong on " + tuner.device.name + ": " +
                (tuned.failure.empty() ? "an error of " + format("%.3g", tuned.fused_error) : tuned.failure));
  }
  tuner.print("moe_ffn on " + tuner.device.name + ": " + found);
}

}  // namespace

Tuner tuner_of(const at::Device& device, PrintLine print) {
  const device::DeviceFacts facts = device::device_facts(device);
  return {.device = {facts.name, facts.driver, hash_file(device::cuda_library())},
          .directory = kernel_table_directory(),
          .child = {.program = launch::own_program(),
                    .arguments = {"dtopp", "check-gemm", "--device", std::to_string(device.index())},
                    .environment = launch::own_environment()},
          .print = print};
}

std::optional<KernelTable> stored_kernels(const Tuner& tuner) {
  if (tuner.directory.empty()) return std::nullopt;
  return read_kernel_table(kernel_table_path(tuner.directory, tuner.device), tuner.device);
}

std::optional<KernelTable> tune_kernels(const Tuner& tuner, bool again) {
  const auto stored = [&] { return again ? std::nullopt : stored_kernels(tuner); };
  if (auto table = stored()) return table;
  const std::filesystem::path lock_path = tuner.directory / "expert_gemms.lock";
  std::optional<Descriptor> lock;
  std::string not_stored;
  try {
    if (tuner.directory.empty()) throw DataError("neither XDG_CACHE_HOME nor HOME names a directory");
    make_directories(tuner.directory);
    lock.emplace(lock_path, O_RDWR | O_CREAT, "open");
    wait_for_lock(*lock, (kExpertGemmNames.size() + 1) * tuner.limit);
    if (auto table = stored()) return table;
  } catch (const DataError& error) {
    not_stored = error.what();
  }
  tuner.print("checking once which expert GEMM kernels to use on " + tuner.device.name);
  KernelTable table;
  try {
    for (size_t gemm = 0; gemm < kExpertGemmNames.size(); ++gemm)
      table.push_back(tune_gemm(tuner, static_cast<ExpertGemm>(gemm), taken_kernels(table)));
  } catch (const ResourceError& error) {
    tuner.print("warning: the check cannot run now, so grouped_mm is used: " + std::string(error.what()));
    return std::nullopt;
  }
  print_result(tuner, table);
  try {
    if (not_stored.empty())
      write_kernel_table(kernel_table_path(tuner.directory, tuner.device), tuner.device, table);
  } catch (const DataError& error) {
    not_stored = error.what();
  }
  if (!not_stored.empty())
    tuner.print("warning: the result cannot be stored, so every start will check again: " + not_stored);
  return table;
}

std::optional<FusedKernelSet> requested_kernels() {
  try {
    return requested_fused_kernels();
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

void choose_fused_kernels(const config::RunConfig& config, const at::Device& device, PrintLine print) {
  if (device.is_cpu() || config.model.is_dense() ||
      device::compute_type(config.training.precision, device) != at::kBFloat16)
    return;
  const device::DeviceFacts facts = device::device_facts(device);
  const std::optional<FusedKernelSet> requested = requested_kernels();
  if (requested && requested->any() && facts.capability < kFusedMinCapability)
    throw UsageError("DTOPP_MOE_KERNELS: the fused kernels need compute capability 8.0 or higher, which " +
                     facts.name + " does not have; use grouped_mm");
  if (requested || config.training.deterministic || facts.capability < kFusedMinCapability) return;
  if (const auto table = tune_kernels(tuner_of(device, print))) set_fused_kernels(taken_kernels(*table));
}

}  // namespace dtopp::ops
