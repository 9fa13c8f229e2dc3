
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/inference.h"
#include "cli/option_checks.h"
#include "dtopp/distributed/failure.h"
#include "dtopp/eval/picture_files.h"

namespace dtopp::cli {
namespace {

constexpr double kDefaultGuidance = 4;

struct SampleOptions {
  InferenceOptions inference;
  inference::PictureRequest request;
  std::string text_embeddings;
  std::string output;
  std::vector<double> guidance_interval;
  bool raw = false;
  bool guidance_given = false, sampler_given = false;
};

// Sets the conditions: the classes of --classes or all classes, and the texts of --text-embeddings.
void choose_conditions(const SampleOptions& options, const config::ModelConfig& model,
                       inference::PictureRequest& request) {
  for (const int64_t label : request.classes) {
    if (model.num_classes == 0) throw UsageError("--classes: the model was trained without classes");
    if (label < 0 || label >= model.num_classes)
      throw UsageError("--classes ", label, ": the model has classes 0 to ", model.num_classes - 1);
  }
  if (request.classes.empty() && model.num_classes > 0) {
    request.classes.resize(static_cast<size_t>(model.num_classes));
    std::iota(request.classes.begin(), request.classes.end(), 0);
  }
  if (options.text_embeddings.empty() != (model.text_length == 0))
    throw UsageError(model.text_length == 0
                         ? "--text-embeddings: the model was trained without text"
                         : "--text-embeddings: is missing; the model needs text embeddings");
  if (model.text_length > 0)
    request.text_NLS = inference::read_text_embeddings(options.text_embeddings, model);
}

void choose_sampler(const SampleOptions& options, const config::RunConfig& config,
                    inference::SamplerOptions& sampler) {
  if (!options.sampler_given)
    sampler.method = config.diffusion.objective == config::Objective::kDdpm
                         ? inference::SamplerMethod::kDdim
                         : inference::SamplerMethod::kEuler;
  validate(sampler, config.diffusion.objective);
  const bool conditioned = config.model.num_classes > 0 || config.model.text_length > 0;
  sampler.guidance = !options.guidance_given && !conditioned ? 1 : sampler.guidance;
  if (sampler.guidance == 1) {
    if (!options.guidance_interval.empty())
      throw UsageError("--guidance-interval: needs a --guidance other than 1");
    return;
  }
  if (!conditioned) throw UsageError("--guidance: the model was trained without classes and text");
  if (config.diffusion.condition_dropout == 0)
    throw UsageError(
        "--guidance: the model was trained with diffusion.condition_dropout 0, so it cannot predict without "
        "a condition; use --guidance 1");
  if (options.guidance_interval.empty()) return;
  sampler.guidance_begin = options.guidance_interval[0];
  sampler.guidance_end = options.guidance_interval[1];
  if (sampler.guidance_begin > sampler.guidance_end)
    throw UsageError("--guidance-interval: the end is less than the beginning");
}

void print_rate(int64_t pictures, double seconds, const moe::ActivationStatistics& activations,
                const config::ModelConfig& config) {
  std::fprintf(stderr, "dtopp: %ld pictures, %.2f per second", pictures,
               static_cast<double>(pictures) / seconds);
  if (!config.is_dense())
    std::fprintf(stderr, ", %.2f of %ld experts per token", activations.summary().mean, config.num_experts);
  std::fprintf(stderr, "\n");
}

void make_pictures(const SampleOptions& options) {
  const checkpoint::Checkpoint checkpoint =
      open_named_checkpoint(options.inference, config::ModelType::kDiffusionTransformer);
  const config::RunConfig config = checkpoint.config();
  inference::PictureRequest request = options.request;
  choose_conditions(options, config.model, request);
  choose_sampler(options, config, request.sampler);
  const data::ImageLayout layout = inference::load_image_layout(checkpoint);
  eval::require_writable(options.output, request, layout);
  const inference::ParameterKind kind =
      options.raw ? inference::ParameterKind::kRaw : inference::ParameterKind::kEma;
  const auto targets = inference::targets_of(config, kind, options.inference.target_experts);
  inference::DiffusionModel model =
      inference::load_diffusion_model(checkpoint, kind, set_up_device(options.inference));
  stop_on_signals();
  ConsoleWatch watch(/*shows=*/true);
  if (!targets.empty()) {
    std::fprintf(stderr, "dtopp: solving p for the target of active experts\n");
    model.routing = inference::solve_for_sampling(model, request, targets, watch);
  }
  moe::ActivationStatistics activations(config.model.is_dense() ? 0 : config.model.num_layers);
  const double begin = steady_seconds();
  inference::ModelDenoiser denoiser(model, model.routing, &activations);
  watch.begin("sample", "steps", static_cast<uint64_t>(request.count * request.sampler.steps));
  inference::PictureSampler sampler(denoiser, config.model, model.device, request, watch);
  eval::write_pictures(options.output, request, layout, sampler);
  watch.end();
  const double seconds = steady_seconds() - begin;
  print_rate(request.count, seconds, activations, config.model);
  std::printf("%s\n", options.output.c_str());
}

void add_sampler_options(CLI::App& command, SampleOptions& options) {
  inference::SamplerOptions& sampler = options.request.sampler;
  sampler.guidance = kDefaultGuidance;
  add_number(command, "--steps", sampler.steps, "sampler steps per picture", positive<int64_t>());
  command
      .add_option("--sampler", sampler.method,
                  "euler or heun (for diffusion.objective flow; default: euler), ddim (for ddpm)")
      ->transform(choice<inference::SamplerMethod>())
      ->default_str("from the objective");
  add_number(command, "--guidance", sampler.guidance,
             "classifier-free guidance scale; 1: no guidance, which halves the time", not_negative<double>());
  add_checked(command, "--guidance-interval", options.guidance_interval,
              "guide only while t is in this interval, e.g. 0.1,0.9", between<double>(0, 1))
      ->delimiter(',')
      ->expected(2);
}

}  // namespace

void add_sample(CLI::App& app) {
  auto options = std::make_shared<SampleOptions>();
  CLI::App* command = app.add_subcommand("sample", "Sample pictures from a diffusion transformer");
  add_checkpoint_options(*command, options->inference);
  inference::PictureRequest& request = options->request;
  command
      ->add_option("--classes", request.classes,
                   "class numbers to cycle through, e.g. 0,3 (default: all classes)")
      ->delimiter(',');
  command->add_option("--text-embeddings", options->text_embeddings,
                      "safetensors file with \"text\" [texts, tokens, size], the texts to cycle through");
  add_checked(*command, "--count", request.count, "number of pictures", positive<int64_t>())->required();
  add_sampler_options(*command, *options);
  add_number(*command, "--seed", request.seed, "seed of the initial noise", not_negative<uint64_t>());
  add_number(*command, "--batch-size", request.batch_size, "pictures per batch", positive<int64_t>());
  command->add_flag("--raw", options->raw, "use the raw parameters instead of their moving average (EMA)");
  add_checked(*command, "--target-experts", options->inference.target_experts,
              "mean number of active experts per token, for which p is solved (default: the target of "
              "training; with --raw, the checkpoint's p)",
              positive<double>());
  command
      ->add_option("--output", options->output,
                   "NAME.png: one grid; NAME.npz: arrays; any other name: a new folder of PNG files")
      ->required();
  command->callback([options, command] {
    options->guidance_given = command->count("--guidance") > 0;
    options->sampler_given = command->count("--sampler") > 0;
    distributed::with_memory_advice("lower --batch-size", [&] { make_pictures(*options); });
  });
}

}  // namespace dtopp::cli
