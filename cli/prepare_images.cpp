// Implements `dtopp prepare images`: converts pictures or latents to image files.
#include "dtopp/data/image_preparation/prepare_images.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/option_checks.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/progress.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/distributed/membership/failure.h"

namespace dtopp::cli {
namespace {

void print_images(const std::string& output, const data::ImageFacts& facts) {
  const auto number = [](auto value) { return static_cast<long long>(value); };
  std::printf("output   %s\n", output.c_str());
  std::printf("images   %lld of %lld x %lld x %lld%s\n", number(facts.images), number(facts.shape.channels),
              number(facts.shape.height), number(facts.shape.width),
              facts.kind == data::ImageKind::kLatents ? ", latents" : "");
  std::printf("classes  %lld\n", number(facts.classes.size()));
  if (facts.text_size > 0)
    std::printf("text     up to %lld x %lld\n", number(facts.text_length), number(facts.text_size));
  if (!facts.skipped.empty()) std::printf("skipped  %lld\n", number(facts.skipped.size()));
}

struct ImageOptions {
  std::vector<std::string> sources;
  std::string output;
  int64_t size = 0;
  int64_t channels = 3;
  std::vector<double> scale, shift;
  uint64_t max_bad = 0;
  int workers = 0;
};

void run_prepare_images(const ImageOptions& options) {
  if (std::ranges::count(options.scale, 0.0) > 0)
    throw UsageError("--scale: must not be 0, because all inputs of the model would be 0");
  stop_on_signals();
  data::PrepareImagesOptions job;
  job.sources.assign(options.sources.begin(), options.sources.end());
  job.output = options.output;
  job.size = options.size;
  job.channels = options.channels;
  job.scale = options.scale;
  job.shift = options.shift;
  job.max_bad = options.max_bad;
  job.num_workers = options.workers > 0 ? options.workers : static_cast<int>(cpu_cores());
  std::optional<StopScope> begins(stop_token());
  data::ImagePreparation preparation(job);
  begins.reset();
  const data::PrepareImagesProgress& progress = preparation.progress();
  if (!progress.restart_reason.empty())
    std::fprintf(stderr, "dtopp: %s: starts again, because it %s\n", options.output.c_str(),
                 progress.restart_reason.c_str());
  ProgressBar bar("prepare", "img");
  bar.set_total(progress.samples_total);
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
  if (progress.was_complete)
    std::fprintf(stderr, "dtopp: %s: already complete; nothing left to do\n", options.output.c_str());
  if (progress.resumed_samples > 0)
    std::fprintf(stderr, "dtopp: resumed after %llu images of an earlier run\n",
                 static_cast<unsigned long long>(progress.resumed_samples));
  print_images(options.output, preparation.facts());
}

}  // namespace

void add_prepare_images(CLI::App& prepare) {
  auto options = std::make_shared<ImageOptions>();
  CLI::App* images = prepare.add_subcommand("images",
                                            "Convert pictures or latents to image files; run the same "
                                            "command again to resume after an interruption");
  images
      ->add_option("sources", options->sources,
                   "folders with one folder per class; .tar, .tar.gz, .tar.zst (class/name.jpg, or\n"
                   "WebDataset: .jpg|.png|.webp with .cls, .json, .npy); .safetensors or .npy arrays")
      ->required();
  images->add_option("--output", options->output, "folder for the image files")->required();
  images
      ->add_option("--size", options->size,
                   "center-crop and resize pictures to SIZE x SIZE (default: all must have the same size)")
      ->check(between<int64_t>(1, data::kLargestSize));
  images->add_option("--channels", options->channels, "channels of pictures: 3 (RGB) or 1 (gray)")
      ->check(CLI::IsMember({1, 3}))
      ->capture_default_str();
  images
      ->add_option("--scale", options->scale,
                   "model input = (latent - shift) * scale; one value, or one per channel")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(finite_number());
  images->add_option("--shift", options->shift, "see --scale")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(finite_number());
  images
      ->add_option("--max-bad", options->max_bad,
                   "maximum number of damaged or unsuitable samples to leave out (default: none)")
      ->check(between<uint64_t>(0, data::kMostBad));
  images->add_option("--workers", options->workers, "decoding threads (default: one per core)")
      ->check(between(1, 1024));
  images->callback([options] {
    distributed::with_memory_advice("lower --workers", [&] { run_prepare_images(*options); });
  });
}

}  // namespace dtopp::cli
