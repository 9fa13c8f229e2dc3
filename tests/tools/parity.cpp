// Computes a model's outputs, for comparison with other implementations:
//   dtopp_parity CONFIG.yaml CHECKPOINT_DIRECTORY TOKENS.safetensors OUTPUT.safetensors
//   dtopp_parity diffusion|diffusion-training CONFIG.yaml INPUT.safetensors OUTPUT.safetensors
// TOKENS holds "tokens", I64 [B, L + 1]. OUTPUT receives logits, every loss, every gradient and the
// activation histograms. diffusion_parity.h describes the second form.
#include <cstdio>
#include <exception>
#include <string_view>

#include "diffusion_parity.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/device/device.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/models/language_model.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/optim/parameter_store.h"
#include "tensor_output.h"

namespace {

using namespace dtopp;

void run(char** argv) {
  const config::RunConfig config = config::load_run_config(argv[1], {});
  const checkpoint::Checkpoint checkpoint(argv[2]);
  const SafetensorsFile input(argv[3]);
  const at::Device device = device::compute_device(config.training.device, "training.device");
  const at::Tensor tokens = read_tensor(input, "tokens").to(device);

  const at::ScalarType type = device::compute_type(config.training.precision, device);
  optim::ParameterStore store(models::language_model_parameters(config.model, config.routing),
                              at::device(device).dtype(type), config.optimizer);
  store.initialize([&](const parameters::ParameterSpec& spec, at::Tensor& whole) {
    dtopp::ops::copy_from_bytes(checkpoint.parameter(spec.name, spec.shape), whole);
  });
  models::LanguageModel model = models::bind_language_model(
      config.model, config.routing, [&](const std::string& name) { return store.model_param(name); });
  if (config.data.end_of_text >= 0) model.end_of_text = config.data.end_of_text;
  const moe::Routing inputs = inference::load_routing(checkpoint, config, device);

  TensorOutput output;
  {
    const at::NoGradGuard no_grad;
    const int64_t length = tokens.size(1) - 1;
    const models::HiddenStates states = models::hidden_states(model, tokens.narrow(1, 0, length), inputs);
    output.add("logits", dtopp::ops::linear(states.x_TD.to(at::kFloat), model.head_VD().to(at::kFloat))
                             .view({tokens.size(0), length, config.model.vocab_size}));
    for (size_t layer = 0; layer < states.routing.size(); ++layer) {
      output.add("active_histogram/" + std::to_string(layer), states.routing[layer].active_histogram);
    }
  }
  const models::BatchLosses losses = models::language_model_losses(model, tokens, inputs, config.loss);
  output.add("loss/total", losses.total);
  for (const auto& [name, value] : losses.values)
    output.add("loss/" + name.substr(0, name.rfind("_loss")), value);
  store.begin_step(/*micro_batches=*/1);
  losses.total.backward();
  store.end_micro_batch();
  store.finish_gradients();
  for (const parameters::ParameterSpec& spec : store.specs())
    output.add("grad/" + spec.name, store.gradient(spec.name));
  output.write(argv[4]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(
        stderr,
        "usage: dtopp_parity CONFIG.yaml CHECKPOINT_DIRECTORY TOKENS.safetensors OUTPUT.safetensors\n"
        "       dtopp_parity diffusion|diffusion-training CONFIG.yaml INPUT.safetensors "
        "OUTPUT.safetensors\n");
    return 2;
  }
  try {
    const std::string_view what = argv[1];
    if (what == "diffusion")
      dtopp::compute_diffusion(argv[2], argv[3], argv[4]);
    else if (what == "diffusion-training")
      dtopp::train_diffusion(argv[2], argv[3], argv[4]);
    else
      run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtopp_parity: %s\n", error.what());
    return 1;
  }
  return 0;
}
