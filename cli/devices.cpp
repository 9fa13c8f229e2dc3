// Implements `dtopp devices`: lists the devices of this machine and the kernels that dtopp uses on them.
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/ranks.h"
#include "dtopp/base/json.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

namespace dtopp::cli {
namespace {

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
  ops::FusedKernelSet fused;
};

std::vector<CudaDevice> find_cuda_devices() {
  std::vector<CudaDevice> devices;
  for (int64_t index = 0; index < device::cuda_devices(); ++index) {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    const device::DeviceFacts facts = device::device_facts(device);
    devices.push_back(
        {index, facts, *device::free_device_memory(device), ops::fused_kernels(facts.capability)});
  }
  return devices;
}

std::string capability_text(int64_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

void print_json(const CpuFacts& cpu, const std::optional<std::string>& missing,
                const std::vector<CudaDevice>& devices) {
  auto list = ordered_json::array();
  for (const CudaDevice& device : devices) {
    list.push_back({{"index", device.index},
                    {"name", device.facts.name},
                    {"compute_capability", capability_text(device.facts.capability)},
                    {"memory_bytes", device.facts.memory_bytes},
                    {"free_bytes", device.free_bytes},
                    {"expert_gemms", ordered_json::array()}});
    for (size_t gemm = 0; gemm < ops::kExpertGemmNames.size(); ++gemm)
      list.back()["expert_gemms"].push_back(
          {{"gemm", ops::kExpertGemmNames[gemm]}, {"kernel", device.fused[gemm] ? "fused" : "grouped_mm"}});
  }
  ordered_json all = {
      {"cpu",
       {{"threads", cpu.threads}, {"free_bytes", cpu.free_bytes}, {"fp32", cpu.fp32}, {"bf16", cpu.bf16}}},
      {"cuda", {{"missing", nullptr}, {"devices", list}}}};
  if (missing) all["cuda"]["missing"] = *missing;
  std::printf("%s\n", dump_json(all).c_str());
}

double gibibytes(uint64_t bytes) { return static_cast<double>(bytes) / (uint64_t{1} << 30U); }

void print_text(const CpuFacts& cpu, const std::optional<std::string>& missing,
                const std::vector<CudaDevice>& devices) {
  std::printf("cpu     %d %s, %.1f GiB of memory free; multiplies fp32 by %s, bf16 by %s\n", cpu.threads,
              cpu.threads == 1 ? "thread" : "threads", gibibytes(cpu.free_bytes), cpu.fp32, cpu.bf16);
  if (missing) std::printf("cuda    cannot be used: %s\n", missing->c_str());
  for (const CudaDevice& device : devices) {
    std::printf("cuda:%ld  %s, compute capability %s, %.1f of %.1f GiB of memory free\n", device.index,
                device.facts.name.c_str(), capability_text(device.facts.capability).c_str(),
                gibibytes(device.free_bytes), gibibytes(device.facts.memory_bytes));
    std::printf("        expert GEMMs with fused kernels, in bf16: %s\n",
                device.fused.none() ? "none" : ops::fused_kernels_text(device.fused).c_str());
  }
}

void show_devices(bool json) {
  check_requested_kernels();
  const std::optional<std::string> missing = device::find_cuda();
  const auto devices = missing ? std::vector<CudaDevice>() : find_cuda_devices();
  (json ? print_json : print_text)(find_cpu(), missing, devices);
}

}  // namespace

void add_devices(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("devices", "Show the devices of this machine and the kernels used on them");
  command->add_flag("--json", *json, "print one JSON object");
  command->callback([json] { show_devices(*json); });
}

}  // namespace dtopp::cli
