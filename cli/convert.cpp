// Implements `dtopp convert`: converts checkpoints and tasks to the formats of other programs, and back.
#include "dtopp/convert/convert.h"

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/inference.h"
#include "cli/option_checks.h"
#include "dtopp/base/errors.h"

namespace dtopp::cli {
namespace {

constexpr int64_t kBatchSize = 8;

struct ConvertOptions {
  InferenceOptions from;
  std::string folder;
};

struct ToHuggingFace {
  InferenceOptions inference;
  std::string folder, text;
  convert::HuggingFaceOptions how;
};

// Prints the numbers of experts of the text's tokens, and the share of tokens with more than `most`.
void print_experts(const ToHuggingFace& options, const checkpoint::Checkpoint& checkpoint, int64_t most) {
  const inference::InferenceModel model = load_model(options.inference, checkpoint);
  const eval::EvaluationText text =
      open_texts(options.inference, {options.text}, checkpoint, model.config.model);
  distributed::SingleRank alone;
  ConsoleWatch watch(alone);
  watch.begin("experts", "tok", text.size());
  const moe::ActivationStatistics active =
      eval::measure_perplexity(model, text, kBatchSize, alone, watch).activations;
  watch.end();
  const Tensor share_LN = active.histogram().to(at::kDouble) / static_cast<double>(active.tokens());
  const auto largest = active.histogram().sum(0).nonzero().max().item<int64_t>();
  std::printf("experts   %.4f per token, at most %ld\n", active.summary().mean, largest);
  const Tensor above_L = share_LN.narrow(1, most + 1, share_LN.size(1) - most - 1).sum(1);
  const auto [worst, layer] = above_L.max(0);
  std::printf("cut       %.4f %% of tokens have more than %ld (layer %ld: %.4f %%)\n",
              100 * above_L.mean().item<double>(), most, layer.item<int64_t>(), 100 * worst.item<double>());
}

void convert_to_hf(const ToHuggingFace& options) {
  const checkpoint::Checkpoint checkpoint =
      open_named_checkpoint(options.inference, config::ModelType::kLanguageModel);
  const int64_t most = convert::exported_max_experts(checkpoint.config(), options.how.max_experts);
  if (!options.text.empty() && checkpoint.config().model.is_dense())
    throw UsageError("--text: the model is dense");
  if (!options.text.empty()) print_experts(options, checkpoint, most);
  convert::convert_to_huggingface(checkpoint, options.folder, options.how);
  std::printf("%s\n", options.folder.c_str());
}

void add_to_hf(CLI::App& convert) {
  auto options = std::make_shared<ToHuggingFace>();
  CLI::App* command = convert.add_subcommand(
      "to-hf", "Convert a language model's checkpoint to a folder for Hugging Face transformers");
  add_checkpoint_option(*command, options->inference);
  command->add_option("folder", options->folder, "new folder to write")->required();
  command
      ->add_option("--as", options->how.as,
                   "model class: dtopp, with its code beside the weights (trust_remote_code), or a class of "
                   "transformers, which needs model.norm=rms, routing.method=top_k and normalization=none")
      ->transform(choice<convert::HuggingFaceClass>())
      ->default_str("dtopp");
  add_checked(*command, "--max-experts", options->how.max_experts,
              "upper limit of experts per token in the converted model; tokens with more keep their "
              "likeliest ones",
              positive<int64_t>());
  command->add_option("--text", options->text,
                      "text file or token folder on which to count the tokens that --max-experts changes");
  command
      ->add_option("--tokenizer", options->inference.tokenizer,
                   "tokenizer.json file for --text, for a checkpoint without one")
      ->needs("--text");
  command->callback([options] { convert_to_hf(*options); });
}

void add_from_hf(CLI::App& convert) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      convert.add_subcommand("from-hf",
                             "Convert the folder of an OLMoE, Mixtral, Qwen2-MoE or Qwen3-MoE "
                             "model, or of convert to-hf, to a checkpoint");
  command->add_option("folder", options->folder, "folder with config.json and model.safetensors")->required();
  command->add_option("checkpoint", options->from.checkpoint, "new checkpoint to write")->required();
  command->callback([options] {
    convert::convert_from_huggingface(options->folder, options->from.checkpoint);
    std::printf("%s\n", options->from.checkpoint.c_str());
  });
}

void add_to_gguf(CLI::App& convert) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = convert.add_subcommand(
      "to-gguf", "Convert a Top-k language model's checkpoint to a file for llama.cpp, in fp32");
  add_checkpoint_option(*command, options->from);
  command->add_option("file", options->folder, "new file to write, e.g. model.gguf")->required();
  command->callback([options] {
    convert::convert_to_gguf(open_named_checkpoint(options->from, config::ModelType::kLanguageModel),
                             options->folder);
    std::printf("%s\n", options->folder.c_str());
  });
}

void add_lm_eval(CLI::App& convert) {
  struct Paths {
    std::string folder, data;
  };
  auto paths = std::make_shared<Paths>();
  CLI::App* command = convert.add_subcommand(
      "lm-eval", "Convert the 13 tasks of evaluate to lm-eval tasks with the same prompts");
  command->add_option("folder", paths->folder, "new folder to write")->required();
  command->add_option("--data", paths->data, "folder with the task files")->required();
  command->callback([paths] {
    convert::convert_to_lm_eval(paths->data, paths->folder);
    std::printf("%s\n", paths->folder.c_str());
  });
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "convert",
      "Convert checkpoints to the formats of other programs, and back (docs/how-to/hugging-face.md)");
  command->require_subcommand(1);
  add_to_hf(*command);
  add_from_hf(*command);
  add_to_gguf(*command);
  add_lm_eval(*command);
}

}  // namespace dtopp::cli
