#include "dtopp/train/attention_choice.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "dtopp/base/median.h"
#include "dtopp/base/steady_seconds.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"

namespace dtopp {
namespace {

constexpr double kLeastGain = 1.03;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct AttentionInputs {
  at::Tensor q, k, v, dy;
  bool causal;
};

// As models give them: [B, L, H, K] with two dimensions swapped. All samples are alike, and random, since a
// device is faster on zeros.
AttentionInputs random_inputs(const AttentionShape& shape, const at::Device& device) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto random = [&](bool differentiable) {
    const at::Tensor x_LHK =
        at::randn({shape.tokens, shape.heads, shape.head_size}, generator).to(device, at::kBFloat16);
    return x_LHK.repeat({shape.samples, 1, 1, 1}).transpose(1, 2).set_requires_grad(differentiable);
  };
  return {random(true), random(true), random(true), random(false), shape.causal};
}

// A few calls together: waiting for the device takes some 1e-5 s.
double milliseconds_of(const AttentionInputs& in) {
  constexpr int kCalls = 5;
  const double begin = steady_seconds();
  at::Tensor last;
  for (int call = 0; call < kCalls; ++call)
    last =
        torch::autograd::grad({self_attention(in.q, in.k, in.v, in.causal)}, {in.q, in.k, in.v}, {in.dy})[0];
  last.flatten()[0].item();
  return 1e3 * (steady_seconds() - begin) / kCalls;
}

double milliseconds_or_never(const AttentionInputs& in) {
  try {
    return milliseconds_of(in);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // of cuDNN: no plan for this shape
    return kNever;
  }
}

class KeptPreference {
 public:
  KeptPreference() = default;
  KeptPreference(const KeptPreference&) = delete;
  KeptPreference& operator=(const KeptPreference&) = delete;
  ~KeptPreference() { prefer_attention(before_); }

 private:
  AttentionKernel before_ = preferred_attention();
};

std::string milliseconds_text(double milliseconds) {
  if (milliseconds == kNever) return "not possible";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g ms", milliseconds);
  return text.data();
}

}  // namespace

AttentionShape attention_shape(const RunConfig& config) {
  const ModelConfig& model = config.model;
  return {.samples = config.training.micro_batch_size,
          .heads = model.num_heads,
          .tokens = model.tokens_per_sample(),
          .head_size = model.head_size(),
          .causal = model.type == ModelType::kLanguageModel};
}

AttentionTimes time_attention(const AttentionShape& shape, const at::Device& device) {
  constexpr int kWarmUps = 2, kRounds = 7;
  milliseconds_or_never(
      random_inputs({1, 1, 8, shape.head_size, shape.causal}, device));  // sets libtorch's own order
  const KeptPreference kept;
  const AttentionInputs inputs = random_inputs(shape, device);
  std::array<std::vector<double>, kAttentionKernelNames.size()> times;
  for (int round = 0; round < kWarmUps + kRounds; ++round) {
    for (const AttentionKernel kernel : {AttentionKernel::kCudnn, AttentionKernel::kFlash}) {
      prefer_attention(kernel);
      const double taken = milliseconds_or_never(inputs);
      if (round >= kWarmUps) times[static_cast<size_t>(kernel)].push_back(taken);
    }
  }
  return {median(times[0]), median(times[1])};
}

AttentionKernel faster_attention(const AttentionTimes& times, AttentionKernel preferred) {
  const bool is_cudnn = preferred == AttentionKernel::kCudnn;
  const double own = is_cudnn ? times.cudnn : times.flash, other = is_cudnn ? times.flash : times.cudnn;
  if (other == own || other * kLeastGain > own) return preferred;  // equal: neither can
  return is_cudnn ? AttentionKernel::kFlash : AttentionKernel::kCudnn;
}

void choose_attention(const RunConfig& config, const at::Device& device,
                      const std::function<void(const std::string&)>& log) {
  if (device.is_cpu() || config.training.deterministic ||
      compute_type(config.training.precision, device) != at::kBFloat16)
    return;
  if (config.model.type == ModelType::kLanguageModel && !config.model.attend_across_documents) return;
  if (std::getenv("TORCH_CUDNN_SDPA_DEPRIORITIZED") != nullptr) return;
  std::optional<AttentionTimes> times;
  try {
    times = time_attention(attention_shape(config), device);
  } catch (const c10::OutOfMemoryError&) {
  }
  // Return the memory of the trial to the device.
  at::getDeviceAllocator(device.type())->emptyCache();
  if (!times)
    return log(
        "warning: which kernel computes attention faster cannot be tried: too little of the device's memory "
        "is free");
  const AttentionKernel taken = faster_attention(*times, preferred_attention());
  prefer_attention(taken);
  log("attention on " + device_facts(device).name + ": " +
      std::string(kAttentionKernelNames[static_cast<size_t>(taken)]) + " (a layer: cuDNN " +
      milliseconds_text(times->cudnn) + ", flash " + milliseconds_text(times->flash) + ")");
}

}  // namespace dtopp
