// Implements `dtopp prepare text`: converts text to token files.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/option_checks.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/format.h"
#include "dtopp/base/progress.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/data/text_preparation/prepare_text.h"
#include "dtopp/distributed/membership/failure.h"

namespace dtopp::cli {
namespace {

struct PrepareOptions {
  std::vector<std::string> files;
  std::string tokenizer;
  std::string output;
  std::string split_on;
  std::string by;
  int workers = 0;
};

// Draws the share of the input that is read and the rates of text and tokens.
class PrepareBar {
 public:
  void operator()(const data::PrepareTextProgress& progress) {
    if (!begun_) {
      bar_.set_total(progress.input_bytes_total);
      bar_.set_start(progress.input_bytes);
      tokens_at_start_ = progress.tokens;
      begun_ = true;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    if (seconds > 0)
      bar_.set_note("(text " + format_bytes(static_cast<double>(progress.text_bytes) / seconds) + "/s, " +
                    format_count(static_cast<double>(progress.tokens - tokens_at_start_) / seconds) +
                    " tok/s)");
    bar_.update(progress.input_bytes);
  }
  void finish() { bar_.finish(); }

 private:
  using Clock = std::chrono::steady_clock;
  ProgressBar bar_{"prepare", "B"};
  Clock::time_point began_ = Clock::now();
  uint64_t tokens_at_start_ = 0;
  bool begun_ = false;
};

void prepare_folder(const data::PrepareTextOptions& job, const data::TextEncoder& encoder) {
  std::optional<StopScope> begins(stop_token());
  data::TextPreparation preparation(job, encoder);
  begins.reset();
  const data::PrepareTextProgress& progress = preparation.progress();
  if (!progress.restart_reason.empty())
    std::fprintf(stderr, "dtopp: %s: starts again, because it %s\n", job.output.c_str(),
                 progress.restart_reason.c_str());
  PrepareBar bar;
  for (bool more = !progress.was_complete; more; more = preparation.next()) {
    bar(progress);
    if (stop_requested()) preparation.stop();
  }
  bar.finish();
  if (progress.was_complete)
    std::fprintf(stderr, "dtopp: %s: already complete; nothing left to do\n", job.output.c_str());
  if (progress.resumed_documents > 0)
    std::fprintf(stderr, "dtopp: resumed after %llu documents of an earlier run\n",
                 static_cast<unsigned long long>(progress.resumed_documents));
  std::printf("output     %s\n", job.output.c_str());
  std::printf("documents  %llu\n", static_cast<unsigned long long>(progress.documents));
  std::printf("tokens     %llu\n", static_cast<unsigned long long>(progress.tokens));
}

void prepare_text(const PrepareOptions& options) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(options.tokenizer);
  stop_on_signals();
  data::PrepareTextOptions job;
  job.inputs.assign(options.files.begin(), options.files.end());
  job.output = options.output;
  job.split_on = options.split_on;
  job.num_workers = options.workers > 0 ? options.workers : static_cast<int>(cpu_cores());
  const data::TokenizerEncoder encoder(tokenizer);
  if (options.by.empty()) return prepare_folder(job, encoder);
  std::optional<StopScope> reads(stop_token());
  const std::vector<std::string> values = data::values_in(job.inputs, options.by);
  reads.reset();
  for (const std::string& value : values) {
    job.only = {options.by, value};
    job.output = std::filesystem::path(options.output) / value;
    prepare_folder(job, encoder);
  }
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* verb = app.add_subcommand("prepare", "Convert data to the files that training reads");
  verb->require_subcommand(1);
  CLI::App* text = verb->add_subcommand(
      "text", "Convert text to token files; run the same command again to resume after an interruption");
  text->add_option("files", options->files,
                   "JSON lines (.jsonl, .ndjson, .json; key \"text\"); any other name: plain text.\n"
                   "Each may be compressed (.gz, .zst, .zstd)")
      ->required();
  text->add_option("--tokenizer", options->tokenizer, "tokenizer.json file (byte-level BPE)")->required();
  text->add_option("--output", options->output, "folder for the token files")->required();
  text->add_option("--split-on", options->split_on,
                   "text between the documents of a plain text file, such as '<|endoftext|>'\n"
                   "(default: a plain text file is one document)")
      ->check(not_empty());
  text->add_option("--by", options->by,
                   "key of the JSON lines, such as 'source': write a folder for each of its values")
      ->excludes("--split-on");
  text->add_option("--workers", options->workers, "encoding threads (default: one per core)")
      ->check(between(1, 1024));
  text->callback(
      [options] { distributed::with_memory_advice("lower --workers", [&] { prepare_text(*options); }); });
  add_prepare_images(*verb);
}

}  // namespace dtopp::cli
