// Implements `dtopp convert`: converts checkpoints and tasks to the formats of other programs, and back.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/inference.h"
#include "cli/option_checks.h"
#include "cli/verbs.h"
#include "dtopp/convert/convert_gguf.h"
#include "dtopp/convert/convert_huggingface.h"
#include "dtopp/convert/convert_lm_eval.h"

namespace dtopp::cli {
namespace {

struct ConvertOptions {
  InferenceOptions from;
  std::string folder;
  convert::HuggingFaceClass as = convert::HuggingFaceClass::kDtopp;
};

void add_to_hf(CLI::App& convert) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb = convert.add_subcommand(
      "to-hf", "Convert a language model's checkpoint to a folder for Hugging Face transformers");
  verb->add_option("checkpoint", options->from.checkpoint,
                   "checkpoint, or run directory (its newest checkpoint is used)")
      ->required();
  verb->add_option("folder", options->folder, "new folder to write")->required();
  verb->add_option("--as", options->as,
                   "model class: dtopp, with its code beside the weights (trust_remote_code), or a class of "
                   "transformers, which needs model.norm=rms, routing.method=top_k and normalization=none")
      ->transform(choice<convert::HuggingFaceClass>())
      ->default_str("dtopp");
  verb->callback([options] {
    const checkpoint::Checkpoint checkpoint =
        open_named_checkpoint(options->from, config::ModelType::kLanguageModel);
    convert::convert_to_huggingface(checkpoint, options->folder, options->as);
    std::printf("%s\n", options->folder.c_str());
  });
}

void add_from_hf(CLI::App& convert) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb = convert.add_subcommand("from-hf",
                                          "Convert a folder of an OLMoE, Mixtral, Qwen2-MoE or Qwen3-MoE "
                                          "model, or of convert to-hf, to a checkpoint");
  verb->add_option("folder", options->folder, "folder with config.json and model.safetensors")->required();
  verb->add_option("checkpoint", options->from.checkpoint, "new checkpoint to write")->required();
  verb->callback([options] {
    convert::convert_from_huggingface(options->folder, options->from.checkpoint);
    std::printf("%s\n", options->from.checkpoint.c_str());
  });
}

void add_to_gguf(CLI::App& convert) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb = convert.add_subcommand(
      "to-gguf", "Convert a Top-k language model's checkpoint to a file for llama.cpp, in fp32");
  verb->add_option("checkpoint", options->from.checkpoint,
                   "checkpoint, or run directory (its newest checkpoint is used)")
      ->required();
  verb->add_option("file", options->folder, "new file to write, e.g. model.gguf")->required();
  verb->callback([options] {
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
  CLI::App* verb = convert.add_subcommand(
      "lm-eval", "Convert the 13 tasks of evaluate to lm-eval tasks with the same prompts");
  verb->add_option("folder", paths->folder, "new folder to write")->required();
  verb->add_option("--data", paths->data, "folder with the task files")->required();
  verb->callback([paths] {
    convert::convert_to_lm_eval(paths->data, paths->folder);
    std::printf("%s\n", paths->folder.c_str());
  });
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "convert",
      "Convert checkpoints to the formats of other programs, and back (docs/how-to/hugging-face.md)");
  verb->require_subcommand(1);
  add_to_hf(*verb);
  add_from_hf(*verb);
  add_to_gguf(*verb);
  add_lm_eval(*verb);
}

}  // namespace dtopp::cli
