#include "dtopp/train/step_trace.h"

#include <cstdlib>
#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

#include "dtopp/base/errors.h"

namespace dtopp::train {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepTrace::StepTrace(const at::Device& device) {
  // Without a device the profiler would print an error.
  ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
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
