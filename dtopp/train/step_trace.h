// Records the operators and kernels of one step on a CUDA device, with PyTorch's profiler.
#pragma once

#include <filesystem>

#include "dtopp/ops/core/torch.h"

namespace dtopp::train {

// Recording begins with the object and slows the step down. Only one object may exist at a time.
class StepTrace {
 public:
  StepTrace();
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Ends the recording and writes it as a Chrome trace, which https://ui.perfetto.dev shows. The device must
  // have finished the step. DataError if the file cannot be written.
  void save(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

}  // namespace dtopp::train
