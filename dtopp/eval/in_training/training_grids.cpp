#include "dtopp/eval/in_training/training_grids.h"

#include <algorithm>
#include <numeric>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/eval/picture_files.h"

namespace dtopp::eval {
namespace {

constexpr int64_t kRows = 8, kColumns = 8;

inference::PictureRequest request_of(const config::RunConfig& config) {
  inference::PictureRequest request;
  request.count = kRows * kColumns;
  request.seed = static_cast<uint64_t>(config.training.seed);
  request.sampler.steps = 25;
  if (config.diffusion.objective == config::Objective::kDdpm)
    request.sampler.method = inference::SamplerMethod::kDdim;
  if (config.model.num_classes == 0) return request;
  if (config.diffusion.condition_dropout > 0) request.sampler.guidance = 4;
  request.classes = config.diffusion.sample_classes;
  if (request.classes.empty()) {
    request.classes.resize(static_cast<size_t>(std::min(kRows, config.model.num_classes)));
    std::iota(request.classes.begin(), request.classes.end(), 0);
  }
  request.count = static_cast<int64_t>(request.classes.size()) * kColumns;
  return request;
}

std::filesystem::path grid_of(const config::RunConfig& config, int64_t step) {
  return std::filesystem::path(config.output) / "samples" / (checkpoint::checkpoint_name(step) + ".png");
}

class TrainingGrids final : public train::Periodic {
 public:
  TrainingGrids(const config::RunConfig& config, const data::ImageLayout& layout)
      : config_(config), layout_(layout) {}

  bool is_due(const checkpoint::TrainingState& state, bool is_last) const override {
    return state.step > 0 && (is_last || state.step % config_.diffusion.samples_every == 0);
  }
  bool is_done(const checkpoint::TrainingState& state) const override {
    return path_kind(grid_of(config_, state.step)) != PathKind::kNothing;
  }

  std::optional<train::Measurements> run(train::Trainer& trainer, const StopToken& /*stop*/) override {
    if (trainer.model().ema_decay > 0) trainer.swap_ema();
    try {
      draw(trainer);
    } catch (const NumericalError&) {  // NOLINT: the run continues, and a later grid may be finite
    }
    if (trainer.model().ema_decay > 0) trainer.swap_ema();
    return train::Measurements();
  }

 private:
  void draw(const train::Trainer& trainer) const {
    const at::NoGradGuard no_grad;
    inference::Watch watch;
    const inference::PictureRequest request = request_of(config_);
    const models::ParameterLookup parameter = [&](const std::string& name) {
      return trainer.parameters().model_param(name);
    };
    inference::DiffusionModel model{
        config_, parameter, models::bind_diffusion_transformer(config_.model, config_.routing, parameter),
        trainer.parallel_routing(), parameter("patch_embed.weight").device()};
    const auto targets = inference::targets_of(config_, inference::ParameterKind::kEma, /*wanted=*/0);
    if (!targets.empty()) model.routing = inference::solve_for_sampling(model, request, targets, watch);
    PictureGrid grid(request, layout_);
    inference::ModelDenoiser denoiser(model, model.routing);
    inference::PictureSampler sampler(denoiser, config_.model, model.device, request, watch);
    while (const auto batch = sampler.next()) grid.add(*batch);
    if (trainer.ranks().rank() > 0) return;
    const std::filesystem::path path = grid_of(config_, trainer.state().step);
    make_directories(path.parent_path());
    write_file_atomically(path, grid.encode());
  }

  config::RunConfig config_;
  data::ImageLayout layout_;
};

}  // namespace

std::unique_ptr<train::Periodic> make_training_grids(const config::RunConfig& config) {
  if (config.model.type != config::ModelType::kDiffusionTransformer || config.diffusion.samples_every == 0 ||
      config.model.text_length > 0)
    return nullptr;
  // Sizes suffice here: the run verifies the contents when it opens the images for training.
  const std::vector<std::string> folders = config::paths_of(config.data.train);
  const data::ImageLayout layout =
      data::ImageData::open({folders.begin(), folders.end()}, data::Verify::kSizes).layout();
  if (layout.is_latent) return nullptr;
  return std::make_unique<TrainingGrids>(config, layout);
}

}  // namespace dtopp::eval
