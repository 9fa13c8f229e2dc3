#include "dtopp/data/image_preparation/array_source.h"

#include <array>
#include <utility>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/files/npy_header.h"
#include "dtopp/data/image_preparation/image_source.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

struct NpyDtype {
  std::string_view descr;
  std::string_view name;
  uint64_t size;
};

NpyDtype dtype_of(std::string_view descr, const ByteReader& reader) {
  constexpr std::array<NpyDtype, 3> kDtypes{{{"'<f4'", "F32", 4}, {"'<f2'", "F16", 2}, {"'|u1'", "U8", 1}}};
  for (const NpyDtype& dtype : kDtypes) {
    if (descr == dtype.descr) return dtype;
  }
  reader.fail("dtype " + std::string(descr.substr(0, 40)) +
              " is not supported; save float32, float16 or uint8");
}

// Reads samples as rows of the tensors in one .npy or .safetensors file.
class ArraySource : public ImageSource {
 public:
  explicit ArraySource(const fs::path& path) : path_(path) {
    if (path.extension() == ".npy") {
      npy_.emplace(path);
      add_samples(read_npy_array(npy_->bytes(), path.string()));
    } else {
      safetensors_.emplace(path);
      add_tensors();
    }
  }

  std::optional<RawSample> next(bool) override {
    if (next_ == count_) return std::nullopt;
    RawSample sample;
    sample.name = path_.string() + ": sample " + std::to_string(next_);
    sample.image = row(*samples_);
    if (flipped_) sample.flipped = row(*flipped_);
    if (text_) sample.text = row(*text_);
    if (labels_) set_label(sample);
    ++next_;
    return sample;
  }

 private:
  [[noreturn]] void fail(const std::string& cause) const { throw DataError(path_.string() + ": " + cause); }

  void add_samples(TensorView samples) {
    if (samples.shape.size() != 4) fail("is not an array of samples [N, C, H, W]");
    count_ = samples.shape[0];
    if (count_ > 0 && samples.bytes.empty()) fail("holds samples without numbers");
    samples_ = std::move(samples);
  }

  void add_tensors() {
    const TensorView* images = safetensors_->find("images");
    const TensorView* latents = safetensors_->find("latents");
    if (!images == !latents) fail("needs a tensor \"latents\" or \"images\" [N, C, H, W]");
    add_samples(images ? *images : *latents);
    flipped_ = find("latents_flip");
    if (flipped_ && (images || flipped_->shape != samples_->shape || flipped_->dtype != samples_->dtype))
      fail("latents_flip must have the shape and the dtype of latents");
    labels_ = find("labels");
    if (labels_ && (labels_->shape.size() != 1 || (labels_->dtype != "I64" && labels_->dtype != "I32")))
      fail("labels must be I64 or I32 [N]");
    text_ = find("text");
    if (text_ && text_->shape.size() != 3) fail("text must be [N, tokens, size]");
  }

  std::optional<TensorView> find(const std::string& name) const {
    const TensorView* tensor = safetensors_->find(name);
    if (!tensor) return std::nullopt;
    if (tensor->shape.empty() || tensor->shape[0] != count_)
      fail(name + " must hold " + std::to_string(count_) + " samples");
    return *tensor;
  }

  TensorView row(const TensorView& all) const {
    const uint64_t size = all.bytes.size() / static_cast<uint64_t>(count_);
    return {all.name,
            all.dtype,
            {all.shape.begin() + 1, all.shape.end()},
            all.bytes.subspan(static_cast<uint64_t>(next_) * size, size)};
  }

  void set_label(RawSample& sample) const {
    ByteReader label(row(*labels_).bytes, sample.name);
    sample.label = labels_->dtype == "I64" ? label.read<int64_t>() : label.read<int32_t>();
    if (sample.label < 0 || sample.label >= kMaxClasses)
      sample.cause =
          "label " + std::to_string(sample.label) + " is not from 0 to " + std::to_string(kMaxClasses - 1);
  }

  fs::path path_;
  std::optional<MappedFile> npy_;
  std::optional<SafetensorsFile> safetensors_;
  std::optional<TensorView> samples_, flipped_, labels_, text_;
  int64_t count_ = 0;
  int64_t next_ = 0;
};

}  // namespace

TensorView read_npy_array(std::span<const std::byte> file, const std::string& what) {
  ByteReader reader(file, what);
  if (!begins_as_npy(file)) reader.fail("not a .npy file");
  const NpyHeader header = read_npy_header(reader);
  const NpyDtype dtype = dtype_of(header.descr, reader);
  if (header.fortran_order) reader.fail("is in Fortran order; save it in C order");
  const auto bytes = read_npy_data(reader, header.shape, dtype.size);
  return {"", std::string(dtype.name), header.shape, bytes};
}

std::unique_ptr<ImageSource> open_image_array(const fs::path& path) {
  return std::make_unique<ArraySource>(path);
}

}  // namespace dtopp::data
