// Implements `dtopp prepare text | images`: converts text to token files, and pictures or latents to image
// files.
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option_checks.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/errors.h"
#include "dtopp/data/images/prepare_images.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/distributed/failure.h"

namespace dtopp::cli {
namespace {

void print_restart(const fs::path& output, const std::string& reason) {
  if (reason.empty()) return;
  std::fprintf(stderr, "dtopp: %s: starts again, because it %s\n", output.c_str(), reason.c_str());
}

// Reports what an earlier run of the same command has done already.
void print_earlier_work(const fs::path& output, bool was_complete, uint64_t resumed, const char* unit) {
  if (was_complete) std::fprintf(stderr, "dtopp: %s: already complete; nothing left to do\n", output.c_str());
  if (resumed > 0) std::fprintf(stderr, "dtopp: resumed after %lu %s of an earlier run\n", resumed, unit);
}

void print_images(const fs::path& output, const data::ImageFacts& facts) {
  std::printf("output   %s\n", output.c_str());
  std::printf("images   %ld of %ld x %ld x %ld%s\n", facts.images, facts.shape.channels, facts.shape.height,
              facts.shape.width, facts.kind == data::ImageKind::kLatents ? ", latents" : "");
  std::printf("classes  %ld\n", facts.classes.size());
  if (facts.text_size > 0) std::printf("text     up to %ld x %ld\n", facts.text_length, facts.text_size);
  if (!facts.skipped.empty()) std::printf("skipped  %ld\n", facts.skipped.size());
}

void run_prepare_images(const data::PrepareImagesOptions& job) {
  if (std::ranges::count(job.scale, 0.0) > 0)
    throw UsageError("--scale: must not be 0, because all inputs of the model would be 0");
  stop_on_signals();
  std::optional<StopScope> begins(stop_token());
  data::ImagePreparation preparation(job);
  begins.reset();
  const data::PrepareImagesProgress& progress = preparation.progress();
  print_restart(job.output, progress.restart_reason);
  ProgressBar bar("prepare", "img", progress.samples_total);
  bar.set_start(progress.samples);
  size_t skipped = preparation.facts().skipped.size();
  for (bool more = !progress.was_complete; more; more = preparation.next()) {
    for (; skipped < preparation.facts().skipped.size(); ++skipped) {
      const data::SkippedImage& image = preparation.facts().skipped[skipped];
      std::fprintf(stderr, "dtopp: left out: %s: %s\n", image.name.c_str(), image.cause.c_str());
    }
    bar.update(progress.samples);
    if (stop_requested()) preparation.stop();
  }
  bar.finish();
  print_earlier_work(job.output, progress.was_complete, progress.resumed_samples, "images");
  print_images(job.output, preparation.facts());
}

void add_prepare_images(CLI::App& prepare) {
  auto options = std::make_shared<data::PrepareImagesOptions>();
  options->num_workers = static_cast<int>(cpu_cores());
  CLI::App* images = prepare.add_subcommand("images",
                                            "Convert pictures or latents to image files; run the same "
                                            "command again to resume after an interruption");
  images
      ->add_option("sources", options->sources,
                   "folders with one folder per class; .tar, .tar.gz, .tar.zst (class/name.jpg, or\n"
                   "WebDataset: .jpg|.png|.webp with .cls, .json, .npy); .safetensors or .npy arrays")
      ->required();
  images->add_option("--output", options->output, "folder for the image files")->required();
  add_checked(*images, "--size", options->size,
              "center-crop and resize pictures to SIZE x SIZE (default: all must have the same size)",
              between<int64_t>(1, data::kLargestSize));
  images->add_option("--channels", options->channels, "channels of pictures: 3 (RGB) or 1 (gray)")
      ->check(CLI::IsMember({1, 3}))
      ->capture_default_str();
  add_checked(*images, "--scale", options->scale,
              "model input = (latent - shift) * scale; one value, or one per channel", finite_number())
      ->delimiter(',')
      ->allow_extra_args(false);
  add_checked(*images, "--shift", options->shift, "see --scale", finite_number())
      ->delimiter(',')
      ->allow_extra_args(false);
  add_checked(*images, "--max-bad", options->max_bad,
              "maximum number of damaged or unsuitable samples to leave out (default: none)",
              between<uint64_t>(0, data::kMostBad));
  add_checked(*images, "--workers", options->num_workers, "decoding threads (default: one per core)",
              between(1, 1024));
  images->callback([options] {
    distributed::with_memory_advice("lower --workers", [&] { run_prepare_images(*options); });
  });
}

struct PrepareOptions {
  data::PrepareTextOptions job;
  std::string tokenizer, by;
};

void prepare_folder(const data::PrepareTextOptions& job, const data::TextEncoder& encoder) {
  std::optional<StopScope> begins(stop_token());
  data::TextPreparation preparation(job, encoder);
  begins.reset();
  const data::PrepareTextProgress& progress = preparation.progress();
  print_restart(job.output, progress.restart_reason);
  ProgressBar bar("prepare", "B", progress.input_bytes_total);
  bar.set_start(progress.input_bytes);
  const double begin = steady_seconds();
  const uint64_t tokens_at_start = progress.tokens;
  for (bool more = !progress.was_complete; more; more = preparation.next()) {
    const double seconds = steady_seconds() - begin;
    if (seconds > 0)
      bar.set_note("(text " + format_bytes(static_cast<double>(progress.text_bytes) / seconds) + "/s, " +
                   format_count(static_cast<double>(progress.tokens - tokens_at_start) / seconds) +
                   " tok/s)");
    bar.update(progress.input_bytes);
    if (stop_requested()) preparation.stop();
  }
  bar.finish();
  print_earlier_work(job.output, progress.was_complete, progress.resumed_documents, "documents");
  std::printf("output     %s\n", job.output.c_str());
  std::printf("documents  %lu\n", progress.documents);
  std::printf("tokens     %lu\n", progress.tokens);
}

void prepare_text(const PrepareOptions& options) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(options.tokenizer);
  stop_on_signals();
  const data::TokenizerEncoder encoder(tokenizer);
  if (options.by.empty()) return prepare_folder(options.job, encoder);
  std::optional<StopScope> reads(stop_token());
  const std::vector<std::string> values = data::values_in(options.job.inputs, options.by);
  reads.reset();
  for (const std::string& value : values) {
    data::PrepareTextOptions job = options.job;
    job.only = {options.by, value};
    job.output /= value;
    prepare_folder(job, encoder);
  }
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto options = std::make_shared<PrepareOptions>();
  data::PrepareTextOptions& job = options->job;
  job.num_workers = static_cast<int>(cpu_cores());
  CLI::App* command = app.add_subcommand("prepare", "Convert data to the files that training reads");
  command->require_subcommand(1);
  CLI::App* text = command->add_subcommand(
      "text", "Convert text to token files; run the same command again to resume after an interruption");
  text->add_option("files", job.inputs,
                   "JSON lines (.jsonl, .ndjson, .json; key \"text\"); any other name: plain text.\n"
                   "Each may be compressed (.gz, .zst, .zstd)")
      ->required();
  text->add_option("--tokenizer", options->tokenizer, "tokenizer.json file (byte-level BPE)")->required();
  text->add_option("--output", job.output, "folder for the token files")->required();
  add_checked(*text, "--split-on", job.split_on,
              "text between the documents of a plain text file, such as '<|endoftext|>'\n"
              "(default: a plain text file is one document)",
              not_empty());
  text->add_option("--by", options->by,
                   "key of the JSON lines, such as 'source': write a folder for each of its values")
      ->excludes("--split-on");
  add_checked(*text, "--workers", job.num_workers, "encoding threads (default: one per core)",
              between(1, 1024));
  text->callback(
      [options] { distributed::with_memory_advice("lower --workers", [&] { prepare_text(*options); }); });
  add_prepare_images(*command);
}

}  // namespace dtopp::cli
