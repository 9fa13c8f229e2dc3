#include "dtopp/data/images/prepare_images.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp::data {
namespace {

constexpr uint64_t kHeadBytes = uint64_t{1} << 12;  // reserved in front of a shard's first tensor

std::string shard_name(size_t number) { return format("images-%05zu.safetensors", number); }

bool is_offsets(const std::string& name) { return name.ends_with("offsets"); }

using ImageClock = std::chrono::steady_clock;

PrepareImagesOptions checked(PrepareImagesOptions options) {
  if (options.sources.empty()) throw UsageError("no images to prepare");
  if (options.num_workers < 1) throw UsageError("at least one worker is needed");
  if (options.size < 0 || options.size > kLargestSize)
    throw UsageError("--size ", options.size, ": must be from 1 to ", kLargestSize);
  if (options.channels != 1 && options.channels != 3)
    throw UsageError("--channels ", options.channels, ": must be 1 (gray) or 3 (RGB)");
  if (options.max_bad > kMostBad)
    throw UsageError("--max-bad ", options.max_bad, ": must be at most ", kMostBad);
  for (const fs::path& path : options.sources) open_images(path);  // fails early if any cannot be opened
  return options;
}

ImagePlan make_plan(const std::vector<fs::path>& sources) {
  ImagePlan plan;
  std::set<std::string> folders;
  for (const fs::path& path : sources) {
    ImageScan scan = scan_images(path);
    if (scan.samples == 0) throw DataError(path, ": holds no pictures (JPEG, PNG, WebP) and no latents");
    plan.samples.push_back(scan.samples);
    plan.classes.by_number |= scan.has_numbers;
    folders.merge(scan.folders);
  }
  if (plan.classes.by_number) return plan;
  if (folders.size() > static_cast<size_t>(kMaxClasses))
    throw DataError(sources.front(), ": pictures lie in ", folders.size(), " folders, more than the ",
                    kMaxClasses, " classes allowed");
  for (const std::string& folder : folders)  // in byte order
    plan.classes.labels.emplace(folder, std::ssize(plan.classes.labels));
  return plan;
}

std::vector<InputSource> describe_sources(const std::vector<fs::path>& paths) {
  std::vector<InputSource> sources;
  for (const fs::path& path : paths) sources.push_back(describe_source(path));
  return sources;
}

}  // namespace

// Writes samples to shards, safetensors files of at most 1 GiB. An interrupted write can be resumed.
//
// The current shard is stored as one file per tensor, called a stream (progress.images, progress.labels, …).
// When the shard is full, the other streams are appended to the first one, which holds nearly all bytes. The
// safetensors header is written in front, and the file is renamed to images-0000N.safetensors.

class ImageWriter {
 public:
  // Resumes after `start`, the result of an earlier writer's sync() or finish_shard(). `facts` determine the
  // tensors of the samples. Throws DataError if the data written until then are missing or changed.
  ImageWriter(fs::path folder, const ImageFacts& facts, const ManifestFiles& start, uint64_t shard_bytes)
      : folder_(std::move(folder)), shard_bytes_(shard_bytes) {
    const std::vector<int64_t> shape = {facts.shape.channels, facts.shape.height, facts.shape.width};
    if (facts.kind == ImageKind::kPixels) add_stream("images", "U8", shape, 1);
    if (facts.kind == ImageKind::kEncoded) {
      add_stream("bytes", "U8", {}, 1);
      add_stream("offsets", "I64", {}, sizeof(int64_t));
    }
    if (facts.kind == ImageKind::kLatents) {
      const std::string type = enum_name(facts.latent_type);
      add_stream("latents", type, shape, size_of(facts.latent_type));
      if (facts.has_flipped) add_stream("latents_flip", type, shape, size_of(facts.latent_type));
    }
    if (!facts.classes.empty()) add_stream("labels", "I64", {}, sizeof(int64_t));
    if (facts.text_size > 0) {
      add_stream("text", enum_name(facts.text_type), {facts.text_size}, size_of(facts.text_type));
      add_stream("text_offsets", "I64", {}, sizeof(int64_t));
    }
    for (const auto& [name, entry] : start)
      if (!name.starts_with(kStreamPrefix)) shards_[name] = entry;
    verify_sizes(folder_, shards_);
    take_back_unrecorded();
    open_streams(start);
  }

  // Returns true if the sample fits into the current shard. Every sample fits into an empty shard.
  bool has_room_for(const PreparedImage& image) const {
    // Three integers (the label and two offsets) are added to the sample's own bytes.
    uint64_t bytes = kHeadBytes + image.bytes() + 3 * sizeof(int64_t);
    for (const Stream& stream : streams_) bytes += stream.file->size();
    return images_ == 0 || bytes <= shard_bytes_;
  }

  // Appends a sample to the current shard. Precondition: it has the writer's kind, shape and types.
  void append(const PreparedImage& image) {
    const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    put(image.kind == ImageKind::kPixels    ? "images"
        : image.kind == ImageKind::kEncoded ? "bytes"
                                            : "latents",
        bytes_of(image.data));
    for (const Stream& stream : streams_)
      if (stream.name == "bytes") put_number("offsets", std::ssize(*stream.file));
    put("latents_flip", bytes_of(image.flipped));
    put_number("labels", image.label);
    put("text", bytes_of(image.text));
    text_tokens_ += image.text_length;
    put_number("text_offsets", text_tokens_);
    ++images_;
  }

  // Syncs all streams to the device. Returns all files of the folder with their checksums.
  ManifestFiles sync() {
    ManifestFiles files = shards_;
    for (Stream& stream : streams_) {
      stream.file->sync();
      files[kStreamPrefix + stream.name] = {stream.file->size(), stream.file->hash()};
    }
    return files;
  }

  // Completes the current shard and returns the finished files. No recorded byte changes until begin_shard().
  // A run that is interrupted before the result is recorded therefore resumes from the earlier record.
  ManifestFiles finish_shard() {
    const std::string name = shard_name(shards_.size() + 1);
    const fs::path path = folder_ / name;
    AppendFile& file = *streams_.front().file;
    const std::string head = safetensors_head(path, append_others(), {}, kHeadBytes);
    file.write_head(std::as_bytes(std::span(head)));
    file.sync();
    rename_durably(file.path(), path);
    shards_[name] = {kHeadBytes + file.size(), hash_file(path)};
    return shards_;
  }

  // Begins the next shard with empty streams.
  void begin_shard() { open_streams({}); }
  bool is_empty() const { return images_ == 0; }

 private:
  struct Stream {
    std::string name, dtype;
    std::vector<int64_t> rest;  // the shape after the first dimension
    uint64_t row_bytes;
    std::unique_ptr<AppendFile> file;
  };

  void add_stream(const std::string& name, const std::string& dtype, std::vector<int64_t> rest,
                  uint64_t element_bytes) {
    uint64_t row = element_bytes;
    for (const int64_t side : rest) row *= static_cast<uint64_t>(side);
    streams_.push_back({name, dtype, std::move(rest), row, nullptr});
  }

  // If the next shard was finished but not recorded, renames it back to the first stream. Opening the stream
  // then truncates it to its recorded size. Removes the shards after it, which a folder that starts again
  // has.
  void take_back_unrecorded() {
    size_t number = shards_.size() + 1;
    const fs::path path = folder_ / shard_name(number);
    if (!is_there(path)) return;
    rename_durably(path, stream_path(streams_.front().name));
    std::error_code gone;
    while (fs::remove(folder_ / shard_name(++number), gone)) {
    }
  }

  void open_streams(const ManifestFiles& start) {
    images_ = 0;
    text_tokens_ = 0;
    for (Stream& stream : streams_) {
      const auto found = start.find(kStreamPrefix + stream.name);
      const ManifestEntry entry = found == start.end() ? ManifestEntry{} : found->second;
      stream.file.reset();
      stream.file = std::make_unique<AppendFile>(stream_path(stream.name), entry.size, entry.xxh3_128,
                                                 &stream == &streams_.front() ? kHeadBytes : 0);
      if (is_offsets(stream.name) && entry.size == 0) put_number(stream.name, 0);
      const uint64_t rows = stream.file->size() / stream.row_bytes;
      if (stream.name == "text") text_tokens_ = static_cast<int64_t>(rows);
      if (stream.name == "images" || stream.name == "latents") images_ = rows;
      if (stream.name == "offsets") images_ = rows - 1;
    }
  }

  // Appends the other streams to the first one. Returns the tensors in the order of their bytes in that file.
  std::vector<TensorSource> append_others() {
    std::vector<TensorSource> tensors;
    AppendFile& first = *streams_.front().file;
    for (Stream& stream : streams_) {
      const uint64_t size = stream.file->size();
      std::vector<int64_t> shape = stream.rest;
      shape.insert(shape.begin(), static_cast<int64_t>(size / stream.row_bytes));
      tensors.emplace_back(stream.name, stream.dtype, std::move(shape), size, TensorSource::Read());
      if (stream.file.get() == &first) continue;
      stream.file->flush();
      first.write(MappedFile(stream.file->path()).bytes());
    }
    return tensors;
  }

  void put(const std::string& name, std::span<const std::byte> bytes) {
    for (Stream& stream : streams_)
      if (stream.name == name) stream.file->write(bytes);
  }

  void put_number(const std::string& name, int64_t value) { put(name, std::as_bytes(std::span(&value, 1))); }

  fs::path stream_path(const std::string& name) const { return folder_ / (kStreamPrefix + name); }

  fs::path folder_;
  uint64_t shard_bytes_;
  ManifestFiles shards_;  // finished shards
  std::vector<Stream> streams_;
  uint64_t images_ = 0;  // samples in the current shard
  int64_t text_tokens_ = 0;
};

ImagePreparation::~ImagePreparation() = default;

ImagePreparation::ImagePreparation(PrepareImagesOptions options)
    : options_(checked(std::move(options))),
      folder_(options_.output, image_folder_kind(), to_json(options_), describe_sources(options_.sources)) {
  if (!folder_.complete()) plan_ = make_plan(options_.sources);  // may fail; the folder does not exist yet
  const auto unfinished = folder_.begin();
  if (const auto& complete = folder_.complete()) {
    facts_ = read_image_facts(*complete, options_.output / kManifestName);
    progress_.was_complete = true;
    return;
  }
  facts_.job = options_;
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
  if (facts_.images > 0)
    writer_ = std::make_unique<ImageWriter>(options_.output, facts_, files_, options_.shard_bytes);
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
  const PreparedImage& image = batch_.images[next_in_batch_++];
  const std::string cause = image.cause.empty() ? disagreement(facts_, plan_.classes, image) : image.cause;
  if (cause.empty())
    keep(image);
  else
    skip({image.name, cause});
  ++sample_;
  ++progress_.samples;
  if (ImageClock::now() >= next_record_) record();
  return true;
}

void ImagePreparation::keep(const PreparedImage& image) {
  agree(facts_, plan_.classes, image);
  if (!writer_)
    writer_ = std::make_unique<ImageWriter>(options_.output, facts_, ManifestFiles(), options_.shard_bytes);
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
    throw DataError(
        image.name, ": ", image.cause,
        (options_.max_bad == 0 ? "; repair or remove it, or leave out up to N such samples with --max-bad N"
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
  ordered_json about = to_json(facts_);
  about["position"] = {{"source", source_}, {"sample", sample_}};
  folder_.record(std::move(about), files_);
}

void ImagePreparation::stop() {
  record();
  throw Stopped(options_.output, ": stopped after ", progress_.samples,
                " images; run the same command again to resume");
}

void ImagePreparation::finish() {
  workers_.reset();
  if (facts_.images == 0)
    throw DataError(options_.output, ": all ", progress_.samples,
                    " samples were left out; see the causes above");
  if (!writer_->is_empty()) files_ = writer_->finish_shard();
  write_record();
  folder_.finish(to_json(facts_), files_);
}

}  // namespace dtopp::data
