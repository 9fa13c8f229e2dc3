// Writes every step of a sampler, for comparison with other implementations:
//   sampler_steps euler|heun|ddim STEPS GUIDANCE BEGIN END INPUT.safetensors OUTPUT.safetensors
// INPUT holds "noise", F32 [B, C, H, W], and "class", I64 [B]. The sampled model is sin(3 x + 5 t) + class x
// / 10, with class 0 for "none". OUTPUT receives "steps", [STEPS, B, C, H, W].
#include <cstdio>
#include <exception>
#include <string_view>

#include "dtopp/base/format.h"
#include "dtopp/inference/diffusion_model.h"
#include "tensor_output.h"

namespace {

using namespace dtopp;

class SineDenoiser final : public inference::Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                     const models::Condition& condition) override {
    const auto per_image = [](const at::Tensor& value_B) {
      return value_B.to(at::kFloat).view({-1, 1, 1, 1});
    };
    return (3 * x_BCHW + 5 * per_image(t_B)).sin() + per_image(condition.class_B) * x_BCHW / 10;
  }
};

void run(char** argv) {
  inference::SamplerOptions options;
  options.method = enum_named<inference::SamplerMethod>(argv[1]).value();
  options.steps = std::stoll(argv[2]);
  options.guidance = std::stod(argv[3]);
  options.guidance_begin = std::stod(argv[4]);
  options.guidance_end = std::stod(argv[5]);
  const SafetensorsFile input(argv[6]);
  models::Condition given, none;
  given.class_B = read_tensor(input, "class");
  none.class_B = at::zeros_like(given.class_B);
  std::vector<at::Tensor> steps;
  SineDenoiser denoiser;
  inference::Sampler sampler(denoiser, read_tensor(input, "noise"), given, none, options);
  while (!sampler.is_done()) {
    sampler.step();
    steps.push_back(sampler.x_BCHW());
  }
  TensorOutput output;
  output.add("steps", at::stack(steps));
  output.write(argv[7]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: sampler_steps METHOD STEPS GUIDANCE BEGIN END INPUT OUTPUT\n");
    return 2;
  }
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sampler_steps: %s\n", error.what());
    return 1;
  }
  return 0;
}
