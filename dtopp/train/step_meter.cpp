#include "dtopp/train/step_meter.h"

#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"

namespace dtopp::train {

void StepMeter::begin() {
  if (groups_.traffic) before_ = groups_.traffic->total();
}

StepRates StepMeter::rates(const StepResult& result) {
  StepRates rates;
  rates.tokens_per_second = yardstick_.tokens / result.seconds;
  seconds_ += result.seconds;
  rates.seconds = seconds_;
  const double experts = result.activations.num_layers() > 0 ? result.activations.summary().mean : 0;
  const double flops =
      rates.tokens_per_second * (yardstick_.fixed_flops_per_token + experts * yardstick_.flops_per_expert);
  const auto ranks = static_cast<double>(groups_.size());
  rates.tflops = flops * 1e-12;
  if (yardstick_.peak_rate) rates.mfu = flops / (ranks * *yardstick_.peak_rate);
  recent_seconds_ = recent_seconds_ == 0 ? result.seconds : 0.9 * recent_seconds_ + 0.1 * result.seconds;
  rates.seconds_left = recent_seconds_ * static_cast<double>(yardstick_.last_step - result.step);
  if (groups_.traffic) {
    const distributed::Traffic now = groups_.traffic->total();
    rates.sent_bytes = static_cast<double>(now.bytes - before_.bytes);
    if (groups_.device.is_cpu()) rates.exposed_share = (now.seconds - before_.seconds) / result.seconds;
  }
  const auto memory = device::allocated_device_memory(groups_.device);
  rates.memory_bytes = memory ? memory->now : device::process_memory("VmRSS");
  rates.memory_peak_bytes = memory ? memory->peak : device::process_memory("VmHWM");
  return rates;
}

}  // namespace dtopp::train
