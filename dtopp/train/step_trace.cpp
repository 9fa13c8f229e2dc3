#include "dtopp/train/step_trace.h"

#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

#include "dtopp/base/errors.h"

namespace dtopp::train {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepTrace::StepTrace() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU, ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
}

StepTrace::~StepTrace() {
  if (recording_) profiler::disableProfiler();
}

void StepTrace::save(const std::filesystem::path& path) {
  recording_ = false;
  std::filesystem::remove(path);
  profiler::disableProfiler()->save(path);
  // The profiler reports no error.
  if (!std::filesystem::exists(path)) throw DataError(path.string() + ": the step's trace cannot be written");
}

}  // namespace dtopp::train
