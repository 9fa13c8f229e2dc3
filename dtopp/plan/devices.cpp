#include "dtopp/plan/devices.h"

#include <array>

#include "dtopp/base/available_memory.h"
#include "dtopp/base/errors.h"
#include "dtopp/config/config_tree.h"

namespace dtopp {
namespace {

struct KnownDevice {
  const char* name;
  uint64_t gibibytes;
  DeviceRates rates;
};

// SXM modules; FLOP/s without sparsity; of NVLink one direction; 200 and 400 Gbit/s of InfiniBand.
constexpr std::array<KnownDevice, 3> kKnownDevices = {{
    {"a100", 79, {312e12, 19.5e12, 2.0e12, 300e9, 25e9}},
    {"h100", 79, {989e12, 67e12, 3.35e12, 450e9, 50e9}},
    {"h200", 139, {989e12, 67e12, 4.8e12, 450e9, 50e9}},
}};

}  // namespace

PlanDevice find_device(const std::string& name) {
  if (name == "cpu") return {name, available_memory()};
  for (const KnownDevice& known : kKnownDevices) {
    if (name == known.name) return {name, known.gibibytes << 30U, known.rates};
  }
  throw UsageError("--device: expected one of cpu, a100, h100, h200, got " + quote_for_message(name));
}

}  // namespace dtopp
