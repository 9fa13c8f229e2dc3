#include "dtopp/eval/in_training/training_texts.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "dtopp/base/files.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/eval/in_training/training_model.h"
#include "dtopp/inference/generator.h"

namespace dtopp::eval {
namespace {

constexpr int64_t kOpening = 16, kContinuation = 48;  // tokens
constexpr double kTemperature = 0.8;

std::filesystem::path file_of(const config::RunConfig& config, int64_t step) {
  return std::filesystem::path(config.output) / "samples" / (checkpoint::checkpoint_name(step) + ".txt");
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
    if (state.step == 0 || state.last_validation_step == state.step) return false;
    return is_last || state.step % config_.validation.every == 0;
  }
  bool is_done(const checkpoint::TrainingState& state) const override {
    return path_kind(file_of(config_, state.step)) != PathKind::kNothing;
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
      const at::Tensor tokens =
          data.validation->read(i * (data.validation_samples / count), 1).tensor("tokens");
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
    const std::filesystem::path path = file_of(config_, step);
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

}  // namespace

std::unique_ptr<train::Periodic> make_training_texts(const config::RunConfig& config, const ConsoleLog& log) {
  if (config.validation.samples == 0 || config.validation.every == 0) return nullptr;
  return std::make_unique<TrainingTexts>(config, log);
}

}  // namespace dtopp::eval
