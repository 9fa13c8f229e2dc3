#include "dtopp/device/known_devices.h"

#include <algorithm>
#include <array>

#include <ATen/Context.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/progress.h"
#include "dtopp/config/config_tree.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::device {
namespace {

// Data-sheet FLOP/s of dense matrix multiplication.
struct MatrixRates {
  double bf16, fp32;
};
constexpr MatrixRates kA100{312e12, 19.5e12}, kHopper{989e12, 67e12};  // SXM modules

struct KnownDevice {
  const char* name;
  uint64_t gibibytes;
  DeviceRates rates;
};

// SXM modules; NVLink in one direction; InfiniBand at 200 and 400 Gbit/s.
constexpr std::array<KnownDevice, 3> kKnownDevices = {{
    {"a100", 79, {kA100.bf16, kA100.fp32, 2.0e12, 300e9, 25e9}},
    {"h100", 79, {kHopper.bf16, kHopper.fp32, 3.35e12, 450e9, 50e9}},
    {"h200", 139, {kHopper.bf16, kHopper.fp32, 4.8e12, 450e9, 50e9}},
}};

struct DataSheet {
  std::string_view name;  // part of the driver's device name; the first match counts
  MatrixRates rates;
};

constexpr std::array<DataSheet, 8> kDataSheets = {{
    {"H200 NVL", {835.5e12, 60e12}},
    {"H200", kHopper},
    {"H100 NVL", {835.5e12, 60e12}},
    {"H100 PCIe", {756e12, 51e12}},
    {"H100", kHopper},
    {"GB200", {2500e12, 80e12}},
    {"B200", {2250e12, 75e12}},
    {"A100", kA100},
}};

constexpr double kLongEnough = 1e-3;  // seconds per product; a call costs a device about 1e-5
constexpr int kCalls = 8;
constexpr int64_t kCopiedNumbers = int64_t{1} << 25;  // more than caches hold
constexpr double kBudget = 0.05;  // seconds; then a slow CPU has made its last call: a run waits for this

// Constant values would distort the result: a device then draws less power and runs faster. A copy of the
// device's generator leaves that one as it is.
Tensor random(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Generator generator = at::globalContext().defaultGenerator(options.device()).clone();
  generator.set_current_seed(1);
  return at::randn(sizes, generator, options);
}

}  // namespace

std::optional<double> data_sheet_rate(std::string_view device_name, bool bf16) {
  for (const DataSheet& sheet : kDataSheets)
    if (device_name.find(sheet.name) != std::string_view::npos)
      return bf16 ? sheet.rates.bf16 : sheet.rates.fp32;
  return std::nullopt;
}

PlanDevice find_device(const std::string& name) {
  if (name == "cpu") return {name, available_memory()};
  for (const KnownDevice& known : kKnownDevices) {
    if (name == known.name) return {name, known.gibibytes << 30U, known.rates};
  }
  throw UsageError("--device: expected one of cpu, a100, h100, h200, got " + config::quote_for_message(name));
}

double measure_matrix_rate(const at::TensorOptions& compute) {
  const at::NoGradGuard no_grad;
  const bool emulated = compute.dtype() == at::kBFloat16 && !ops::has_bf16_matmul(compute.device());
  const at::TensorOptions options = emulated ? compute.dtype(at::kFloat) : compute;
  Tensor a, b, c;
  const auto prepare = [&](int64_t rows, int64_t width) {
    a = random({rows, width}, options);
    b = random({width, width}, options);
    c = at::mm(a, b);
    c[0][0].item();
  };
  const auto multiply = [&] {
    const double begin = steady_seconds();
    at::mm_out(c, a, b);
    c[0][0].item();  // waits for the device
    return steady_seconds() - begin;
  };
  int64_t rows = 1024, width = 768;
  prepare(rows, width);
  double best = multiply();
  while (best < kLongEnough && width < 16384) {
    prepare(rows *= 2, width *= 2);
    best = multiply();
  }
  double spent = best;
  for (int call = 0; call < kCalls && spent < kBudget; ++call) {
    const double seconds = multiply();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return 2.0 * static_cast<double>(a.numel() * b.size(1)) / best;
}

double measure_memory_rate() {
  const at::NoGradGuard no_grad;
  const Tensor from = at::ones({kCopiedNumbers}, at::kFloat), to = from.clone();
  double best = 0, spent = 0;
  for (int call = 0; call == 0 || (call < kCalls && spent < kBudget); ++call) {
    const double begin = steady_seconds();
    to.copy_(from);
    const double seconds = steady_seconds() - begin;
    best = call == 0 ? seconds : std::min(best, seconds);
    spent += seconds;
  }
  return 2 * static_cast<double>(from.nbytes()) / best;
}

}  // namespace dtopp::device
