#include "dtopp/data/image_preparation/image_batches.h"

#include <system_error>
#include <utility>

#include "dtopp/base/errors.h"

namespace dtopp {
namespace {

// Limits of a batch: a batch ends when it reaches one of them.
constexpr uint64_t kImageBatchBytes = uint64_t{1} << 18;
constexpr size_t kImageBatchSamples = 64;
constexpr size_t kImageBatchFiles = 8;  // files that the worker reads itself

}  // namespace

ImageBatches::ImageBatches(std::vector<std::filesystem::path> sources, size_t source, uint64_t sample)
    : paths_(std::move(sources)), next_(source), skip_(sample) {
  for (const auto& path : paths_) changed_.push_back(std::filesystem::last_write_time(path));
}

void ImageBatches::open() {
  source_ = open_images(paths_[next_]);
  for (; skip_ > 0; --skip_) source_->next(/*load=*/false);
}

std::optional<ImageBatch> ImageBatches::next() {
  if (next_ == paths_.size()) return std::nullopt;
  if (!source_) open();
  ImageBatch batch;
  batch.source = source_;
  size_t files = 0;
  for (uint64_t bytes = 0;
       bytes < kImageBatchBytes && files < kImageBatchFiles && batch.samples.size() < kImageBatchSamples;) {
    auto sample = source_->next(/*load=*/true);
    if (!sample) {
      require_unchanged();
      batch.ends_source = true;
      source_.reset();
      ++next_;
      break;
    }
    if (sample->picture) bytes += sample->picture->bytes.size();
    if (sample->array) bytes += sample->array->bytes.size();
    if (sample->image) bytes += sample->image->bytes.size();
    files += (sample->picture && !sample->picture->path.empty()) ||
             (sample->array && !sample->array->path.empty());
    batch.samples.push_back(*std::move(sample));
  }
  return batch;
}

void ImageBatches::require_unchanged() const {
  std::error_code gone;  // on an error, the time is one that no file has, so the comparison fails
  if (std::filesystem::last_write_time(paths_[next_], gone) != changed_[next_])
    throw DataError(paths_[next_].string() +
                    ": changed while it was being read; start again with a new output folder");
}

PreparedBatch BatchPreparer::operator()(ImageBatch batch, int /*worker*/) const {
  PreparedBatch prepared;
  prepared.ends_source = batch.ends_source;
  for (RawSample& sample : batch.samples)
    prepared.images.push_back(prepare_image(std::move(sample), job, plan));
  return prepared;
}

}  // namespace dtopp
