// Which of libtorch's attention kernels a training takes on a CUDA device: the one that is faster there, at
// the run's own shapes.
#pragma once

#include <functional>
#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

// The attention sizes of one layer and micro-batch.
struct AttentionShape {
  int64_t samples, heads, tokens, head_size;
  bool causal;
};
AttentionShape attention_shape(const RunConfig& config);

// Milliseconds of a layer, forward and backward, by either kernel in turns: medians. Infinite for one that
// cannot do it. Leaves the order of preference as it was.
struct AttentionTimes {
  double cudnn, flash;
};
AttentionTimes time_attention(const AttentionShape& shape, const at::Device& device);

// The kernel that libtorch prefers by itself, unless the other is at least 3 % faster: less is within what
// times differ by from one measurement to the next.
AttentionKernel faster_attention(const AttentionTimes& times, AttentionKernel preferred);

// Measures the attention kernels on the device, puts the fastest first and returns its name. Does nothing in
// fp32, with training.deterministic, with document masks, or if TORCH_CUDNN_SDPA_DEPRIORITIZED is set.
void choose_attention(const RunConfig& config, const at::Device& device,
                      const std::function<void(const std::string&)>& log);

}  // namespace dtopp
