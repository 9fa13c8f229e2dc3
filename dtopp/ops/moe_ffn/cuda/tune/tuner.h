// Decides which expert GEMMs of moe_ffn use dtopp's fused kernels on a CUDA device: those that are correct
// and faster than torch's.
//
// Each kernel is tried in a child process, because a wrong kernel may crash or hang. The tuner runs once per
// kind of device, driver and library.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/moe_ffn/cuda/tune/kernel_table.h"

namespace dtopp::ops {

using PrintLine = void (*)(const std::string& line);

struct Tuner {
  TunedDevice device;
  std::filesystem::path directory;  // of the stored tables; empty: none is stored
  // Tests one GEMM. Its arguments are followed by the GEMM's name, "--fused" and the kernels in use so far.
  // It answers with the last output line that starts with '{': tuned_gemm_json or {"unchecked": reason}.
  launch::ChildProgram child;
  PrintLine print;
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // time limit per child
};

// The tuner of a CUDA device, which runs this program as `dtopp check-gemm`.
Tuner tuner_of(const at::Device& device, PrintLine print);

// The stored table; nullopt if no usable one exists.
std::optional<KernelTable> stored_kernels(const Tuner& tuner);

// Returns the stored table, or tests the kernels and stores the result. `again`: tests in any case.
//
// One of several processes tests while the others wait for it, even on different hosts that share the
// directory. Prints the result, and warns if a fused kernel is wrong, crashes or hangs; torch's kernel is
// then used. Returns nullopt and prints the reason if the device cannot run a test now.
std::optional<KernelTable> tune_kernels(const Tuner& tuner, bool again = false);

// The user's choice in DTOPP_MOE_KERNELS, if it is set. UsageError if it is invalid.
std::optional<FusedKernelSet> requested_kernels();

// Selects the kernels of this process before training on the device. DTOPP_MOE_KERNELS takes precedence over
// the tuner. Every rank calls it by itself; train::agree_on_kernels then gives all ranks one choice.
//
// Nothing is tuned for CPUs, dense models and fp32, which have no fused kernels, nor with
// training.deterministic, where bits must not depend on measured speed.
//
// Throws:        UsageError if DTOPP_MOE_KERNELS is invalid or names fused kernels that the device cannot run
void choose_fused_kernels(const config::RunConfig& config, const at::Device& device, PrintLine print);

}  // namespace dtopp::ops
