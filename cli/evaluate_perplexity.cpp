#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/progress.h"
#include "dtopp/data/text_reader.h"
#include "dtopp/data/token_file.h"
#include "dtopp/data/tokenizer.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::cli {
namespace {

// The ids of every document of a text file, each closed by <|endoftext|>.
std::vector<int64_t> encode_file(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  if (!std::filesystem::is_regular_file(checkpoint.tokenizer_path())) {
    throw UsageError(
        checkpoint.path().string() +
        " holds no tokenizer.json (its run was trained on bare token files): pass a token folder as --text");
  }
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.tokenizer_path());
  const int32_t end_of_text = tokenizer.end_of_text();
  std::vector<int64_t> ids;
  TextReader reader(path);
  std::string document;
  while (reader.next(document)) {
    const std::vector<int32_t> encoded = tokenizer.encode(document);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    ids.push_back(end_of_text);
  }
  return ids;
}

bool is_token_data(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) || path.extension() == ".npy" || path.extension() == ".bin" ||
         (!std::filesystem::exists(path) && std::filesystem::exists(path.string() + ".idx"));
}

Perplexity run_perplexity(const EvaluateOptions& options, const Checkpoint& checkpoint) {
  const InferenceModel model = load_inference_model(checkpoint);
  const int64_t vocab_size = model.config.model.vocab_size;
  ProgressBar bar("perplexity", "tok");
  const auto progress = [&](uint64_t done) { bar.update(done); };
  if (is_token_data(options.text)) {
    const TokenStream stream = TokenStream::open(options.text, /*verify=*/true, vocab_size);
    if (stream.max_token() >= vocab_size) {
      throw UsageError(options.text + ": token id " + std::to_string(stream.max_token()) +
                       " does not fit the checkpoint's vocabulary of " + std::to_string(vocab_size));
    }
    bar.set_total(stream.size());
    return measure_perplexity(
        model, stream.size(), [&](uint64_t offset, std::span<int64_t> out) { stream.read(offset, out); },
        options.batch_size, progress);
  }
  const std::vector<int64_t> ids = encode_file(options.text, checkpoint);
  bar.set_total(ids.size());
  return measure_perplexity(
      model, ids.size(),
      [&](uint64_t offset, std::span<int64_t> out) {
        std::copy_n(ids.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
      },
      options.batch_size, progress);
}

void print_summary(const Checkpoint& checkpoint, const Perplexity& result) {
  std::printf("checkpoint   %s\n", checkpoint.path().c_str());
  std::printf("tokens       %lld\n", static_cast<long long>(result.tokens));
  std::printf("nll          %.6f nats a token\n", result.nll);
  std::printf("perplexity   %.4f\n", result.perplexity());
  if (result.activations.num_layers() > 0) {
    const ActivationSummary active = result.activations.summary();
    std::printf("experts      %.4f a token (deviation %.4f)\n", active.mean, active.deviation);
  }
}

}  // namespace

void evaluate_perplexity(const EvaluateOptions& options) {
  if (options.text.empty())
    throw UsageError("--tasks perplexity needs --text FILE (a text file or a token folder)");
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const Checkpoint checkpoint = open_named_checkpoint(options);
  const Perplexity result = run_perplexity(options, checkpoint);

  const nlohmann::ordered_json json = {
      {"nll", result.nll}, {"perplexity", result.perplexity()}, {"tokens", result.tokens}};
  if (!options.output.empty()) write_file_atomically(options.output, json.dump(2) + "\n");
  if (options.json)
    std::printf("%s\n", json.dump().c_str());
  else
    print_summary(checkpoint, result);
}

}  // namespace dtopp::cli
