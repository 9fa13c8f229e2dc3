#include "dtopp/eval/in_training/training_grids.h"

#include <algorithm>
#include <numeric>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/eval/picture_files.h"

namespace dtopp {
namespace {

constexpr int64_t kRows = 8, kColumns = 8;

PictureRequest request_of(const RunConfig& config) {
  PictureRequest request;
  request.count = kRows * kColumns;
  request.seed = static_cast<uint64_t>(config.training.seed);
  request.sampler.steps = 25;
  if (config.diffusion.objective == Objective::kDdpm) request.sampler.method = SamplerMethod::kDdim;
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

std::filesystem::path grid_of(const RunConfig& config, int64_t step) {
  return std::filesystem::path(config.output) / "samples" / (checkpoint_name(step) + ".png");
}

void draw(const RunConfig& config, const ImageLayout& layout, int64_t step, const ParameterLookup& parameter,
          const RoutingInputs& routing, bool writes) {
  const at::NoGradGuard no_grad;
  const auto never = [] { return false; };
  const PictureRequest request = request_of(config);
  DiffusionModel model{config, parameter, bind_diffusion_transformer(config.model, config.routing, parameter),
                       routing, parameter("patch_embed.weight").device()};
  const auto targets = targets_of(config, ParameterKind::kEma, /*wanted=*/0);
  if (!targets.empty()) model.routing = solve_for_sampling(model, request, targets, never);
  PictureGrid grid(request, layout);
  sample_pictures(denoiser_of(model, model.routing), config.model, model.device, request,
                  {[](uint64_t /*done*/) {}, never},
                  [&](int64_t first, const at::Tensor& x0_BCHW) { grid.add(first, x0_BCHW); });
  if (!writes) return;
  const std::filesystem::path path = grid_of(config, step);
  make_directories(path.parent_path());
  write_file_atomically(path, grid.encode());
}

}  // namespace

Drawing training_grids(const RunConfig& config) {
  if (config.model.type != ModelType::kDiffusionTransformer || config.diffusion.samples_every == 0 ||
      config.model.text_length > 0)
    return {};
  // Sizes suffice here: the run verifies the contents when it opens the images for training.
  const std::vector<std::string> folders = config.data.train_paths();
  const ImageLayout layout = ImageData::open({folders.begin(), folders.end()}, Verify::kSizes).layout();
  if (layout.is_latent) return {};
  return {config.diffusion.samples_every,
          [config, layout](int64_t step, const ParameterLookup& parameter, const RoutingInputs& routing,
                           bool writes) {
            try {
              draw(config, layout, step, parameter, routing, writes);
            } catch (const NumericalError&) {  // NOLINT: the run continues, and a later grid may be finite
            }
          },
          [config](int64_t step) { return path_kind(grid_of(config, step)) != PathKind::kNothing; }};
}

}  // namespace dtopp
