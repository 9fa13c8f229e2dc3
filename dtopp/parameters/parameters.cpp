#include "dtopp/parameters/parameters.h"

#include "dtopp/base/random.h"

namespace dtopp::parameters {
namespace {

constexpr double kCut = 3.0;  // in standard deviations
constexpr int64_t kBlock = 1 << 16;

void draw_truncated_normal(const ParameterSpec& spec, uint64_t seed, Tensor& tensor) {
  const RandomStream stream(seed, "init " + spec.name);
  // P(|x| < 3) = erf(3 / sqrt 2). The inverse of the truncated distribution function at u is sqrt 2 erfinv((2
  // u - 1) P).
  const double inside = std::erf(kCut / std::sqrt(2.0));
  Tensor flat = tensor.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlock) {
    const int64_t size = std::min(kBlock, flat.numel() - begin);
    Tensor u = at::empty({size}, at::kDouble);
    auto* out = u.mutable_data_ptr<double>();
    at::parallel_for(0, size, 4096, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        out[i] = (2.0 * stream.uniform(static_cast<uint64_t>(begin + i)) - 1.0) * inside;
    });
    flat.narrow(0, begin, size).copy_(u.erfinv_().mul_(std::sqrt(2.0) * spec.initial.std));
  }
}

}  // namespace

void initialize(const ParameterSpec& spec, uint64_t seed, Tensor& tensor) {
  switch (spec.initial.distribution) {
    case Distribution::kZero:
      tensor.zero_();
      return;
    case Distribution::kOne:
      tensor.fill_(1.0);
      return;
    case Distribution::kTruncatedNormal:
      draw_truncated_normal(spec, seed, tensor);
      return;
  }
}

}  // namespace dtopp::parameters
