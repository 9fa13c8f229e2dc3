#include "dtopp/base/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/json.h"

namespace dtopp {
namespace {

constexpr std::array<std::pair<std::string_view, uint64_t>, 17> kDtypeBytes = {{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
    {"C64", 8},
}};

}  // namespace

uint64_t element_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(kDtypeBytes, dtype, &std::pair<std::string_view, uint64_t>::first);
  return found == kDtypeBytes.end() ? 0 : found->second;
}

std::optional<uint64_t> tensor_bytes(uint64_t element, const std::vector<int64_t>& shape) {
  uint64_t bytes = element;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  return bytes;
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Accepts exactly the schema of the header while the parser runs. Memory stays within a small multiple of the
// header, and nesting is bounded. Each handler returns false and sets `cause` at the first violation.
class HeaderHandler : public json::json_sax_t {
 public:
  std::vector<Entry> entries;
  std::string cause;

  bool null() override { return refuse("unexpected null"); }
  bool boolean(bool) override { return refuse("unexpected boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is not an integer");
  }
  bool binary(binary_t&) override { return refuse("unexpected binary value"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return refuse("unexpected number");
    if (key_ == "data_offsets") {
      if (entry().offsets.size() == 2) return refuse("more than two data_offsets");
      entry().offsets.push_back(value);
      return true;
    }
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return refuse("a dimension out of range");
    entry().shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2 || in_array_) return refuse("unexpected string");
    if (in_metadata_) return true;
    if (key_ != "dtype") return refuse("a string for " + key_);
    entry().dtype = std::move(text);
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ == 2 || in_array_) return refuse("unexpected object");
    ++depth_;
    return true;
  }

  bool key(string_t& text) override {
    if (depth_ == 1) return name(text);
    if (in_metadata_) return true;
    key_ = text;
    bool Entry::*const seen = text == "dtype"          ? &Entry::has_dtype
                              : text == "shape"        ? &Entry::has_shape
                              : text == "data_offsets" ? &Entry::has_offsets
                                                       : nullptr;
    if (!seen) return refuse("unknown key \"" + text + "\"");
    if (std::exchange(entry().*seen, true)) return refuse(text + " twice");
    return true;
  }

  bool end_object() override {
    const bool closes_entry = depth_-- == 2 && !in_metadata_;
    if (closes_entry && !(entry().has_dtype && entry().has_shape && entry().offsets.size() == 2))
      return refuse("lacks dtype, shape or two data_offsets");
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || key_ == "dtype") return refuse("unexpected array");
    return in_array_ = true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return refuse("not JSON at byte " + std::to_string(position + sizeof(uint64_t)));
  }

 private:
  Entry& entry() { return entries.back(); }

  bool name(const std::string& text) {
    in_metadata_ = text == "__metadata__";
    if (in_metadata_) return !std::exchange(has_metadata_, true) || refuse("__metadata__ twice");
    entries.push_back({.name = text, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }

  bool refuse(const std::string& what) {
    cause = depth_ == 2 && !in_metadata_ ? "tensor \"" + entry().name + "\": " + what : what;
    return false;
  }

  int depth_ = 0;  // 1: tensor names, 2: inside an entry
  bool in_metadata_ = false, has_metadata_ = false, in_array_ = false;
  std::string key_;
};

std::vector<Entry> parse_header(std::string_view header, const ByteReader& reader) {
  if (!header.starts_with('{')) reader.fail("the header does not begin with {; not a safetensors file");
  // The JSON parser treats a NUL as the end of its input.
  if (header.find('\0') != std::string_view::npos) reader.fail("the header holds a NUL byte");
  HeaderHandler handler;
  if (!json::sax_parse(header.begin(), header.end(), &handler)) reader.fail("the header: ", handler.cause);
  // A stable sort, because an empty tensor has the same offset as the next tensor.
  std::ranges::stable_sort(handler.entries, {}, &Entry::offsets);
  return std::move(handler.entries);
}

// Returns the place of a tensor whose data must begin at `begin` of the file.
TensorPlace place_of(Entry& entry, const fs::path& path, uint64_t data_start, uint64_t begin_in_file,
                     uint64_t file_bytes) {
  const auto fail = [&](const std::string& cause) {
    throw DataError(path, ": byte ", begin_in_file, ": tensor \"", entry.name, "\": ", cause);
  };
  const uint64_t element = element_bytes(entry.dtype);
  if (element == 0) fail("unknown dtype \"" + entry.dtype + "\"");
  const auto bytes = tensor_bytes(element, entry.shape);
  if (!bytes) fail("its size overflows");
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin != begin_in_file - data_start)
    fail("begins with a gap or an overlap, at " + std::to_string(begin));
  if (end < begin || end - begin != *bytes)
    fail("data_offsets do not fit its " + std::to_string(*bytes) + " bytes");
  if (*bytes > file_bytes - begin_in_file)
    fail("needs " + std::to_string(*bytes) + " bytes, has " + std::to_string(file_bytes - begin_in_file));
  return {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), begin_in_file, *bytes};
}

}  // namespace

std::vector<TensorPlace> parse_safetensors(std::span<const std::byte> beginning, uint64_t file_bytes,
                                           const fs::path& path) {
  ByteReader reader(beginning, path.string());
  const auto header_bytes = reader.read<uint64_t>();
  if (header_bytes > kMaxHeaderBytes)
    reader.fail("a header of ", header_bytes, " bytes; not a safetensors file");
  const auto header = reader.take_text(header_bytes);
  const uint64_t data_start = reader.offset();
  uint64_t end = data_start;
  std::vector<TensorPlace> places;
  std::set<std::string_view> names;
  auto entries = parse_header(header, reader);
  places.reserve(entries.size());
  for (auto& entry : entries) {
    places.push_back(place_of(entry, path, data_start, end, file_bytes));
    end += places.back().size;
    if (!names.insert(places.back().name).second)
      reader.fail("tensor \"", places.back().name, "\": appears twice");
  }
  if (end != file_bytes)
    throw DataError(path, ": byte ", end, ": ", file_bytes - end, " bytes that belong to no tensor");
  return places;
}

SafetensorsReader::SafetensorsReader(const fs::path& path) : file_(open_regular(path)) {
  const uint64_t file_bytes = file_.size();
  std::vector<std::byte> beginning(std::min<uint64_t>(file_bytes, sizeof(uint64_t)));
  file_.read_at(0, beginning);
  const auto header_bytes = ByteReader(beginning, path.string()).read<uint64_t>();
  beginning.resize(std::min(file_bytes, sizeof(uint64_t) + std::min(header_bytes, kMaxHeaderBytes)));
  file_.read_at(0, beginning);
  for (TensorPlace& place : parse_safetensors(beginning, file_bytes, path))
    tensors_.emplace(place.name, std::move(place));
}

const TensorPlace* SafetensorsReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  for (TensorPlace& place : parse_safetensors(file_.bytes(), file_.bytes().size(), path)) {
    by_name_.emplace(place.name, tensors_.size());
    tensors_.push_back({std::move(place.name), std::move(place.dtype), std::move(place.shape),
                        file_.bytes().subspan(place.begin, place.size)});
  }
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 64;

// Writes the size of the header into its first 8 bytes.
void set_size(std::string& head) {
  const uint64_t size = head.size() - sizeof(uint64_t);
  std::memcpy(head.data(), &size, sizeof(size));
}

// Returns everything before the tensor data.
std::string head_of(const fs::path& path, const std::vector<TensorSource>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::set<std::string_view> names;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor_bytes(element_bytes(tensor.dtype), tensor.shape);
    if (bytes != tensor.size || element_bytes(tensor.dtype) == 0 || tensor.name == "__metadata__" ||
        !names.insert(tensor.name).second)
      throw DataError(path, ": tensor \"", tensor.name,
                      "\": its name is taken or its dtype and shape do not fit its bytes");
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.size}}};
    offset += tensor.size;
  }
  std::string head = std::string(sizeof(uint64_t), '\0') + dump_json(header);
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  if (head.size() - sizeof(uint64_t) > kMaxHeaderBytes)
    throw DataError(path, ": too many tensors for one file");
  set_size(head);
  return head;
}

void read_all(const fs::path& path, const std::vector<TensorSource>& tensors, const TakeBytes& take) {
  for (const auto& tensor : tensors) {
    uint64_t count = 0;
    tensor.read(0, tensor.size, [&](std::span<const std::byte> bytes) {
      count += bytes.size();
      take(bytes);
    });
    if (count != tensor.size)
      throw DataError(path, ": tensor \"", tensor.name, "\": its size in bytes is not ", tensor.size);
  }
}

}  // namespace

std::string safetensors_head(const fs::path& path, const std::vector<TensorSource>& tensors, uint64_t bytes) {
  std::string head = head_of(path, tensors, {});
  if (head.size() > bytes) throw DataError(path, ": too many tensors");
  head.resize(bytes, ' ');
  set_size(head);
  return head;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<TensorSource>& tensors,
                                     const std::map<std::string, std::string>& metadata, Hasher* hasher)
    : SafetensorsWriter(path, head_of(path, tensors, metadata), hasher) {
  for (const auto& tensor : tensors) size_ += tensor.size;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::string& head, Hasher* hasher)
    : file_(path, hasher) {
  file_.write(head);
  size_ = file_.size();
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) { file_.write(bytes); }

uint64_t SafetensorsWriter::finish() {
  if (file_.size() != size_)
    throw DataError(file_.path(), ": ", file_.size(), " bytes were written of ", size_);
  file_.sync_and_close();
  return size_;
}

uint64_t write_safetensors(const fs::path& path, const std::vector<TensorSource>& tensors,
                           const std::map<std::string, std::string>& metadata, Hasher* hasher) {
  SafetensorsWriter writer(path, tensors, metadata, hasher);
  read_all(path, tensors, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  return writer.finish();
}

void write_safetensors(OutputFile& file, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  file.write(head_of(file.path(), tensors, metadata));
  read_all(file.path(), tensors, [&](std::span<const std::byte> bytes) { file.write(bytes); });
}

}  // namespace dtopp
