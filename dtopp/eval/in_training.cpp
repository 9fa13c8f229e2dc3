#include "dtopp/eval/in_training.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/data_config.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/eval/picture_files.h"
#include "dtopp/eval/scoring.h"
#include "dtopp/inference/generator.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"
#include "dtopp/train/trainer.h"

namespace dtopp::eval {
namespace {

// Throws UsageError if no training data has a tokenizer, with `key`, which needs it, and `none`, the value
// that does without; DataError if training data is missing.
data::Tokenizer training_tokenizer(const config::DataConfig& data, const std::string& key,
                                   const std::string& none) {
  for (const std::string& folder : config::paths_of(data.train))
    if (const auto path = data::tokenizer_beside(folder)) return data::Tokenizer::load(*path);
  for (const std::string& path : config::paths_of(data.train)) {
    const bool absent =
        path_kind(path) == PathKind::kNothing && path_kind(path + ".idx") == PathKind::kNothing;
    if (absent) throw file_error("open", path, ENOENT);
  }
  throw UsageError(
      key, ": no data of data.train has a tokenizer.json; prepare it with dtopp prepare text, or set ", key,
      "=", none);
}

// The language model with the trainer's fp32 parameters and routing. Collective: every rank calls it.
inference::InferenceModel training_model(const config::RunConfig& config, train::Trainer& trainer,
                                         const data::Tokenizer& tokenizer) {
  const models::ParameterLookup parameter = [&](const std::string& name) {
    return trainer.parameters().main_param(name);
  };
  inference::InferenceModel model{
      config, models::bind_language_model(config.model, config.routing, parameter), trainer.routing()};
  model.model.end_of_text = tokenizer.end_of_text();
  return model;
}

bool validates(const config::RunConfig& config, const checkpoint::TrainingState& state, bool is_last) {
  return state.last_validation_step != state.step && (is_last || state.step % config.validation.every == 0);
}

class Probes final : public train::Periodic {
 public:
  Probes(const config::RunConfig& config, const std::vector<tasks::Task>& tasks)
      : config_(config), tokenizer_(training_tokenizer(config.data, "validation.tasks", "[]")) {
    const config::ValidationConfig& validation = config.validation;
    const int64_t limit =
        validation.task_limit > 0 ? validation.task_limit : std::numeric_limits<int64_t>::max();
    for (const tasks::Task& task : tasks)
      tasks_.push_back(tasks::prepare_requests(task, validation.task_data, tokenizer_, limit));
    tasks::take_out_long_tasks(tasks_, joined(validation.tasks, ","), config.model.sequence_length);
  }

  bool is_due(const checkpoint::TrainingState& state, bool is_last) const override {
    return validates(config_, state, is_last);
  }

  std::optional<train::Measurements> run(train::Trainer& trainer, const StopToken& stop) override {
    const at::NoGradGuard no_grad;
    const inference::InferenceModel model = training_model(config_, trainer, tokenizer_);
    train::Measurements measured;
    for (const tasks::TaskRequests& requests : tasks_) {
      const auto share = accuracy(model, requests, trainer.ranks(), stop);
      if (!share) return std::nullopt;
      measured.emplace_back(std::string(requests.task.name) + "/accuracy", *share);
    }
    return measured;
  }

 private:
  // Returns nullopt if stopped, NaN if a log probability is not finite.
  std::optional<double> accuracy(const inference::InferenceModel& model, const tasks::TaskRequests& requests,
                                 distributed::Collectives& ranks, const StopToken& stop) const {
    const int64_t batch_tokens = config_.training.micro_batch_size * config_.model.sequence_length;
    inference::Watch watch(stop);
    const auto scored = score_task(model, tokenizer_, requests, batch_tokens, ranks, watch);
    if (!scored) return std::nullopt;
    std::vector<tasks::Tally> tallies;
    try {
      for (size_t i = 0; i < requests.data_sets.size(); ++i)
        tallies.push_back(
            tasks::tally(requests.data_sets[i], tasks::judge_all(requests, i, (*scored)[i].scores)));
    } catch (const NumericalError&) {  // training continues and may recover
      return std::numeric_limits<double>::quiet_NaN();
    }
    return tasks::summarize(requests.task, tallies).accuracy;
  }

  config::RunConfig config_;
  data::Tokenizer tokenizer_;
  std::vector<tasks::TaskRequests> tasks_;
};

constexpr int64_t kOpening = 16, kContinuation = 48;  // tokens
constexpr double kTemperature = 0.8;

fs::path file_of(const config::RunConfig& config, int64_t step, const char* ending) {
  return fs::path(config.output) / "samples" / (checkpoint::checkpoint_name(step) + ending);
}

// Replaces line ends, so that each text is one line of the console.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

class TrainingTexts final : public train::Periodic {
 public:
  TrainingTexts(const config::RunConfig& config, const ConsoleLog& log)
      : config_(config),
        log_(log),
        tokenizer_(training_tokenizer(config.data, "validation.samples", "0")),
        opening_(std::min(kOpening, config.model.sequence_length / 2)) {}

  bool is_due(const checkpoint::TrainingState& state, bool is_last) const override {
    return state.step > 0 && validates(config_, state, is_last);
  }
  bool is_done(const checkpoint::TrainingState& state) const override {
    return path_kind(file_of(config_, state.step, ".txt")) != PathKind::kNothing;
  }

  std::optional<train::Measurements> run(train::Trainer& trainer, const StopToken& /*stop*/) override {
    const at::NoGradGuard no_grad;
    const inference::InferenceModel model = training_model(config_, trainer, tokenizer_);
    if (trainer.ranks().rank() == 0) write(continue_openings(model, trainer.data()), trainer.state().step);
    return train::Measurements();
  }

 private:
  std::vector<std::vector<int32_t>> openings_of(const models::TrainingData& data) const {
    const uint64_t count =
        std::min(static_cast<uint64_t>(config_.validation.samples), data.validation_samples);
    std::vector<std::vector<int32_t>> openings;
    for (uint64_t i = 0; i < count; ++i) {
      const Tensor tokens = data.validation->read(i * (data.validation_samples / count), 1).tensor("tokens");
      const auto* first = tokens.const_data_ptr<int64_t>();
      openings.emplace_back(first, first + opening_);
    }
    return openings;
  }

  std::vector<std::string> continue_openings(const inference::InferenceModel& model,
                                             const models::TrainingData& data) const {
    std::vector<std::vector<int32_t>> texts = openings_of(data);
    const int64_t room = std::min(kContinuation, config_.model.sequence_length - opening_);
    inference::Generation generation(
        model, texts, std::vector<int64_t>(texts.size(), room),
        {.temperature = kTemperature, .seed = static_cast<uint64_t>(config_.training.seed)});
    for (auto tokens = generation.step(); !tokens.empty(); tokens = generation.step()) {
      for (const inference::GeneratedToken& token : tokens) {
        texts[token.sequence].push_back(token.id);
        if (token.id == tokenizer_.end_of_text()) generation.finish(token.sequence);
      }
    }
    std::vector<std::string> lines;
    for (const std::vector<int32_t>& ids : texts) {
      const std::span<const int32_t> all = ids;
      const auto opening = static_cast<size_t>(opening_);
      lines.push_back(one_line(tokenizer_.decode_generated(all.first(opening)) + " | " +
                               tokenizer_.decode_generated(all.subspan(opening))));
    }
    return lines;
  }

  void write(const std::vector<std::string>& lines, int64_t step) const {
    const fs::path path = file_of(config_, step, ".txt");
    std::string text;
    for (const std::string& line : lines) {
      log_.message("sample at step " + std::to_string(step) + ": " + line);
      text += line + "\n";
    }
    make_directories(path.parent_path());
    write_file_atomically(path, text);
  }

  config::RunConfig config_;
  ConsoleLog log_;
  data::Tokenizer tokenizer_;
  int64_t opening_;
};

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
  request.count = std::ssize(request.classes) * kColumns;
  return request;
}

class TrainingGrids final : public train::Periodic {
 public:
  TrainingGrids(const config::RunConfig& config, const data::ImageLayout& layout)
      : config_(config), layout_(layout) {}

  bool is_due(const checkpoint::TrainingState& state, bool is_last) const override {
    return state.step > 0 && (is_last || state.step % config_.diffusion.samples_every == 0);
  }
  bool is_done(const checkpoint::TrainingState& state) const override {
    return path_kind(file_of(config_, state.step, ".png")) != PathKind::kNothing;
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
    const fs::path path = file_of(config_, trainer.state().step, ".png");
    make_directories(path.parent_path());
    write_file_atomically(path, grid.encode());
  }

  config::RunConfig config_;
  data::ImageLayout layout_;
};

}  // namespace

std::unique_ptr<train::Periodic> make_probes(const config::RunConfig& config) {
  if (config.validation.tasks.empty() || config.validation.every == 0) return nullptr;
  return std::make_unique<Probes>(config, tasks::select_tasks(joined(config.validation.tasks, ",")));
}

std::unique_ptr<train::Periodic> make_training_texts(const config::RunConfig& config, const ConsoleLog& log) {
  if (config.validation.samples == 0 || config.validation.every == 0) return nullptr;
  return std::make_unique<TrainingTexts>(config, log);
}

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
