#include "dtopp/data/image_preparation/prepare_images.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json_fields.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;
using ImageClock = std::chrono::steady_clock;

PrepareImagesOptions checked(PrepareImagesOptions options) {
  if (options.sources.empty()) throw UsageError("no images to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  if (options.size < 0 || options.size > kLargestSize)
    throw UsageError("--size " + std::to_string(options.size) + ": must be from 1 to " +
                     std::to_string(kLargestSize));
  if (options.channels != 1 && options.channels != 3)
    throw UsageError("--channels " + std::to_string(options.channels) + ": must be 1 (gray) or 3 (RGB)");
  if (options.max_bad > kMostBad)
    throw UsageError("--max-bad " + std::to_string(options.max_bad) + ": must be at most " +
                     std::to_string(kMostBad));
  for (const fs::path& path : options.sources) open_images(path);  // fails early if any cannot be opened
  return options;
}

ImagePlan make_plan(const std::vector<fs::path>& sources) {
  ImagePlan plan;
  std::set<std::string> folders;
  for (const fs::path& path : sources) {
    ImageScan scan = scan_images(path);
    if (scan.samples == 0)
      throw DataError(path.string() + ": holds no pictures (JPEG, PNG, WebP) and no latents");
    plan.samples.push_back(scan.samples);
    plan.classes.by_number |= scan.has_numbers;
    folders.merge(scan.folders);
  }
  if (plan.classes.by_number) return plan;
  if (folders.size() > static_cast<size_t>(kMaxClasses))
    throw DataError(sources.front().string() + ": pictures lie in " + std::to_string(folders.size()) +
                    " folders, more than the " + std::to_string(kMaxClasses) + " classes allowed");
  for (const std::string& folder : folders)  // in byte order
    plan.classes.labels.emplace(folder, static_cast<int64_t>(plan.classes.labels.size()));
  return plan;
}

std::vector<InputSource> describe_sources(const std::vector<fs::path>& paths) {
  std::vector<InputSource> sources;
  for (const fs::path& path : paths) sources.push_back(describe_source(path));
  return sources;
}

ImageJob job_of(const PrepareImagesOptions& options) {
  return {options.size, options.channels, options.scale, options.shift};
}

}  // namespace

ImagePreparation::ImagePreparation(PrepareImagesOptions options)
    : options_(checked(std::move(options))),
      folder_(options_.output, image_folder_kind(), to_json(job_of(options_)),
              describe_sources(options_.sources)) {
  if (!folder_.complete()) plan_ = make_plan(options_.sources);  // may fail; the folder does not exist yet
  const auto unfinished = folder_.begin();
  if (const auto& complete = folder_.complete()) {
    facts_ = read_image_facts(*complete, options_.output / kManifestName);
    progress_.was_complete = true;
    return;
  }
  facts_.job = job_of(options_);
  if (unfinished) {
    facts_ = read_image_facts(*unfinished, options_.output);
    const JsonFields position = JsonFields(unfinished->about, options_.output.string()).object("position");
    source_ = position.count("source");
    sample_ = position.count("sample");
    files_ = unfinished->files;
    if (source_ > options_.sources.size()) position.fail("source", "lies beyond the list of sources");
  } else {
    write_record();
  }
  progress_.restart_reason = folder_.restart_reason();
  for (const uint64_t samples : plan_.samples) progress_.samples_total += samples;
  for (size_t i = 0; i < source_; ++i) progress_.samples += plan_.samples[i];
  progress_.samples += sample_;
  progress_.resumed_samples = progress_.samples;
  if (facts_.images > 0) writer_.emplace(options_.output, facts_, files_, options_.shard_bytes);
  workers_.emplace(ImageBatches(options_.sources, source_, sample_), BatchPreparer{facts_.job, plan_.classes},
                   options_.num_workers);
  next_record_ = ImageClock::now() + options_.record_every;
}

bool ImagePreparation::next() {
  if (!workers_) return false;
  while (next_in_batch_ == batch_.images.size()) {
    if (batch_.ends_source) {
      ++source_;
      sample_ = 0;
    }
    auto batch = workers_->next();
    if (!batch) {
      finish();
      return false;
    }
    batch_ = *std::move(batch);
    next_in_batch_ = 0;
  }
  add(batch_.images[next_in_batch_++]);
  if (ImageClock::now() >= next_record_) record();
  return true;
}

void ImagePreparation::add(const PreparedImage& image) {
  const std::string cause = image.cause.empty() ? disagreement(facts_, plan_.classes, image) : image.cause;
  if (cause.empty())
    keep(image);
  else
    skip({image.name, cause});
  ++sample_;
  ++progress_.samples;
}

void ImagePreparation::keep(const PreparedImage& image) {
  agree(facts_, plan_.classes, image);
  if (!writer_) writer_.emplace(options_.output, facts_, ManifestFiles(), options_.shard_bytes);
  if (!writer_->has_room_for(image)) {
    files_ = writer_->finish_shard();
    write_record();
    writer_->begin_shard();
  }
  writer_->append(image);
  ++facts_.images;
}

void ImagePreparation::skip(SkippedImage image) {
  if (facts_.skipped.size() >= options_.max_bad) {
    record();  // a run with a larger --max-bad resumes from here
    throw DataError(image.name + ": " + image.cause +
                    (options_.max_bad == 0
                         ? "; repair or remove it, or leave out up to N such samples with --max-bad N"
                         : "; " + std::to_string(options_.max_bad) +
                               " such samples were left out, as many as --max-bad allows; raise it"));
  }
  facts_.skipped.push_back(std::move(image));
}

// Syncs the samples first: they must be on the device before the record that counts them.
void ImagePreparation::record() {
  if (writer_) files_ = writer_->sync();
  write_record();
  next_record_ = ImageClock::now() + options_.record_every;
}

void ImagePreparation::write_record() {
  nlohmann::ordered_json about = to_json(facts_);
  about["position"] = {{"source", source_}, {"sample", sample_}};
  folder_.record(std::move(about), files_);
}

void ImagePreparation::stop() {
  record();
  throw Stopped(options_.output.string() + ": stopped after " + std::to_string(progress_.samples) +
                " images; run the same command again to resume");
}

void ImagePreparation::finish() {
  workers_.reset();
  if (facts_.images == 0)
    throw DataError(options_.output.string() + ": all " + std::to_string(progress_.samples) +
                    " samples were left out; see the causes above");
  if (!writer_->is_empty()) files_ = writer_->finish_shard();
  write_record();
  folder_.finish(to_json(facts_), files_);
}

}  // namespace dtopp::data
