// Implements `dtopp devices`: lists the devices of this machine and the kernels that dtopp uses on them.
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"

namespace dtopp::cli {
namespace {

struct DevicesOptions {
  bool check = false;
  bool json = false;
};

struct CpuFacts {
  int threads = at::get_num_threads();
  uint64_t free_bytes = device::available_memory();
  const char *fp32, *bf16;  // instructions for matrix products
};

CpuFacts find_cpu() {
  CpuFacts cpu{.fp32 = "vectors of 16 bytes", .bf16 = "conversion to fp32"};
  if (ops::widest_simd() == ops::Simd::kAvx2) cpu.fp32 = "AVX2";
  if (ops::widest_simd() == ops::Simd::kAvx512) cpu.fp32 = "AVX-512";
  if (ops::has_bf16_matmul(at::kCPU)) cpu.bf16 = ops::has_amx() ? "AMX" : "AVX512_BF16";
  return cpu;
}

struct CudaDevice {
  int64_t index;
  device::DeviceFacts facts;
  uint64_t free_bytes;
  std::optional<ops::KernelTable> kernels;
};

std::vector<CudaDevice> find_cuda_devices(bool check) {
  std::vector<CudaDevice> devices;
  std::set<std::string> checked;
  for (int64_t index = 0; index < device::cuda_devices(); ++index) {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    CudaDevice found{index, device::device_facts(device), *device::free_device_memory(device), std::nullopt};
    if (found.facts.capability >= ops::kFusedMinCapability) {
      const ops::Tuner tuner = ops::tuner_of(device, print_message);
      const bool is_new = checked.insert(found.facts.name).second;
      found.kernels = check ? ops::tune_kernels(tuner, /*again=*/is_new) : ops::stored_kernels(tuner);
    }
    devices.push_back(found);
  }
  return devices;
}

std::string capability_text(int64_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

void print_json(const CpuFacts& cpu, const std::optional<std::string>& missing,
                const std::vector<CudaDevice>& devices) {
  auto list = nlohmann::ordered_json::array();
  for (const CudaDevice& device : devices) {
    list.push_back({{"index", device.index},
                    {"name", device.facts.name},
                    {"compute_capability", capability_text(device.facts.capability)},
                    {"memory_bytes", device.facts.memory_bytes},
                    {"free_bytes", device.free_bytes},
                    {"expert_gemms", nullptr}});
    if (device.kernels) list.back()["expert_gemms"] = ops::kernel_table_json(*device.kernels);
  }
  nlohmann::ordered_json all = {
      {"cpu",
       {{"threads", cpu.threads}, {"free_bytes", cpu.free_bytes}, {"fp32", cpu.fp32}, {"bf16", cpu.bf16}}},
      {"cuda", {{"missing", nullptr}, {"devices", list}}}};
  if (missing) all["cuda"]["missing"] = *missing;
  std::printf("%s\n", dump_json(all).c_str());
}

double gibibytes(uint64_t bytes) { return static_cast<double>(bytes) / (uint64_t{1} << 30U); }

void print_kernels(const CudaDevice& device) {
  if (device.facts.capability < ops::kFusedMinCapability)
    return void(std::printf("        expert GEMMs: grouped_mm\n"));
  if (!device.kernels)
    return void(std::printf(
        "        expert GEMMs: kernels not checked yet; the first training run or --check does it\n"));
  std::printf("        %-20s %-11s %23s   %23s\n", "expert GEMM in bf16", "kernel", "error fused  grouped_mm",
              "ms fused  grouped_mm");
  for (const ops::TunedGemm& gemm : *device.kernels) {
    std::printf("        %-20s %-11s", gemm.name().c_str(), gemm.kernel());
    if (!gemm.failure.empty()) {
      std::printf(" %s\n", gemm.failure.c_str());
      continue;
    }
    std::printf(" %11.2g %11.2g   %11.3g %11.3g\n", gemm.fused_error, gemm.grouped_error,
                gemm.fused_milliseconds, gemm.grouped_milliseconds);
  }
}

void print_text(const CpuFacts& cpu, const std::optional<std::string>& missing,
                const std::vector<CudaDevice>& devices) {
  std::printf("cpu     %d %s, %.1f GiB of memory free; multiplies fp32 by %s, bf16 by %s\n", cpu.threads,
              cpu.threads == 1 ? "thread" : "threads", gibibytes(cpu.free_bytes), cpu.fp32, cpu.bf16);
  if (missing) std::printf("cuda    cannot be used: %s\n", missing->c_str());
  for (const CudaDevice& device : devices) {
    std::printf("cuda:%lld  %s, compute capability %s, %.1f of %.1f GiB of memory free\n",
                static_cast<long long>(device.index), device.facts.name.c_str(),
                capability_text(device.facts.capability).c_str(), gibibytes(device.free_bytes),
                gibibytes(device.facts.memory_bytes));
    print_kernels(device);
  }
}

void show_devices(const DevicesOptions& options) {
  const std::optional<std::string> missing = device::find_cuda();
  if (options.check && missing) throw UsageError("--check: no CUDA device can be checked: " + *missing);
  const auto wish = ops::requested_kernels();
  const auto devices = missing ? std::vector<CudaDevice>() : find_cuda_devices(options.check);
  (options.json ? print_json : print_text)(find_cpu(), missing, devices);
  if (wish && !devices.empty())
    print_message("DTOPP_MOE_KERNELS overrides the kernels: " + ops::fused_kernels_text(*wish));
}

struct CheckOptions {
  std::string gemm, fused;
  int64_t device = 0;
};

using Numbers = std::tuple<double, double, double, double>;

nlohmann::ordered_json check_now(const CheckOptions& options) {
  try {
    if (const auto missing = device::find_cuda()) return {{"unchecked", *missing}};
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device));
    at::ones({1}, device).item();  // fails if the device cannot be used
  } catch (const c10::Error& error) {
    return {{"unchecked", error.what_without_backtrace()}};
  }
  try {
    const auto [fused_error, grouped_error, fused_milliseconds, grouped_milliseconds] =
        ops::call_op<"dtopp::check_expert_gemm", Numbers(const std::string&, const std::string&, int64_t)>(
            options.gemm, options.fused, options.device);
    return ops::tuned_gemm_json({.gemm = *ops::expert_gemm_named(options.gemm),
                                 .fused_error = fused_error,
                                 .grouped_error = grouped_error,
                                 .fused_milliseconds = fused_milliseconds,
                                 .grouped_milliseconds = grouped_milliseconds});
  } catch (const c10::OutOfMemoryError&) {
    return {{"unchecked", "not enough free device memory"}};
  }
}

void add_check_gemm(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* verb =
      app.add_subcommand("check-gemm", "Check one expert GEMM; `dtopp devices --check` starts it");
  verb->group("");  // hidden from --help: internal
  verb->add_option("gemm", options->gemm)
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(ops::kExpertGemmNames.begin(), ops::kExpertGemmNames.end())));
  verb->add_option("--fused", options->fused, "the GEMMs that use fused kernels at the same time")
      ->required();
  verb->add_option("--device", options->device, "index of the CUDA device, from 0");
  verb->callback([options] { std::printf("%s\n", dump_json(check_now(*options)).c_str()); });
}

}  // namespace

void add_devices(CLI::App& app) {
  auto options = std::make_shared<DevicesOptions>();
  CLI::App* verb =
      app.add_subcommand("devices", "Show the devices of this machine and the kernels used on them");
  verb->add_flag("--check", options->check,
                 "check again which kernels for expert GEMMs are correct and fastest on each CUDA device "
                 "(docs/how-to/gpu.md)");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->callback([options] { show_devices(*options); });
  add_check_gemm(app);
}

}  // namespace dtopp::cli
