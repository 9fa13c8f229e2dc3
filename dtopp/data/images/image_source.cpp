#include "dtopp/data/images/image_source.h"

#include <charconv>
#include <exception>
#include <system_error>
#include <tuple>

#include <archive.h>
#include <archive_entry.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/stop.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/text/byte_source.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string_view base_name(std::string_view name) { return name.substr(name.rfind('/') + 1); }

// Returns the position of the dot that begins the last ending; the name's size if it has none.
size_t ending_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  const size_t base = name.size() - base_name(name).size();
  return dot == name.npos || dot <= base ? name.size() : dot;
}

bool is_array_file(const fs::path& path) {
  return path.extension() == ".safetensors" || path.extension() == ".npy";
}

bool is_tar(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".tar") || name.ends_with(".tar.gz") || name.ends_with(".tgz") ||
         name.ends_with(".tar.zst");
}

int64_t checked_class(int64_t number) {
  if (number < 0 || number >= kMaxClasses)
    throw DataError("class ", number, " is not from 0 to ", kMaxClasses - 1);
  return number;
}

bool is_complete(const RawSample& sample) { return sample.picture || sample.array || !sample.cause.empty(); }

bool is_picture(MemberRole role) {
  return role == MemberRole::kPicture || role == MemberRole::kUnknownPicture;
}

// Limits of a batch: a batch ends when it reaches one of them.
constexpr uint64_t kImageBatchBytes = uint64_t{1} << 18;
constexpr uint64_t kImageBatchDecodedBytes = uint64_t{1} << 24;
constexpr size_t kImageBatchSamples = 64;
constexpr size_t kImageBatchFiles = 8;  // files that the worker reads itself

// Groups the members of an archive or a folder into samples.
//
// As in WebDataset, adjacent members form one sample if their names differ only in the last ending:
// dog/0001.jpg, dog/0001.cls, dog/0001.npy.
class SampleGroups : public ImageSource {
 public:
  std::optional<RawSample> next(bool load) final {
    RawSample sample;
    std::string key;
    bool has_picture = false;  // two pictures are two samples, even with the same key
    for (;;) {
      if (!pending_) pending_ = next_member();
      if (!pending_) return is_complete(sample) ? std::optional(std::move(sample)) : std::nullopt;
      const MemberRole role = role_of(pending_->name);
      if (role != MemberRole::kOther) {
        if (key_of(pending_->name) != key || (has_picture && is_picture(role))) {
          if (is_complete(sample)) return sample;
          sample = {};
          has_picture = false;
          key = key_of(pending_->name);
        }
        has_picture |= is_picture(role);
        add(sample, *pending_, role, load);
      }
      pending_.reset();
    }
  }

 protected:
  struct Named {
    std::string name;
    std::string cause;  // if not empty, the reason why the member is unusable
  };
  // Returns the next member; nullopt after the last one.
  virtual std::optional<Named> next_member() = 0;
  // Returns the content of the member that next_member() returned last.
  virtual RawMember content(bool load) = 0;
  // Returns the member's name for messages.
  virtual std::string location_of(const std::string& name) const = 0;

 private:
  void add(RawSample& sample, const Named& member, MemberRole role, bool load) {
    if (sample.name.empty() || is_picture(role)) sample.name = location_of(member.name);
    if (!member.cause.empty()) {
      sample.cause = member.cause;
      return;
    }
    sample.folder = folder_of(member.name);
    switch (role) {
      case MemberRole::kPicture:
        sample.picture = content(load);
        break;
      case MemberRole::kArray:
        sample.array = content(load);
        break;
      case MemberRole::kNumber:
        sample.number = content(/*load=*/true);
        break;
      case MemberRole::kJson:
        sample.json = content(/*load=*/true);
        break;
      default:
        sample.cause = "has an unsupported format; convert it to JPEG, PNG or WebP";
    }
  }

  std::optional<Named> pending_;  // the member that begins the next sample
};

struct FolderMember {
  std::string name;  // path relative to the folder, with "/"
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since 1970
};

// Lists the files of a folder, whose names begin with `prefix`, and of its subfolders. `above` are the
// folders that contain it.
void list_members(const fs::path& folder, const std::string& prefix,
                  std::vector<std::pair<dev_t, ino_t>>& above, std::vector<FolderMember>& members) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) throw file_error("list", folder, errno);
  const std::pair identity(status.st_dev, status.st_ino);
  if (std::ranges::find(above, identity) != above.end())
    throw DataError(folder, ": is a link back to a folder that contains it; remove the link");
  above.push_back(identity);
  for (const fs::path& path : list_directory(folder)) {
    const std::string name = prefix + path.filename().string();
    if (path.filename().string().starts_with('.')) continue;
    end_if_stopped();
    struct stat file {};
    const bool there = ::stat(path.c_str(), &file) == 0;  // if not, opening it reports the reason
    if (there && S_ISDIR(file.st_mode))
      list_members(path, name + "/", above, members);
    else if (role_of(name) != MemberRole::kOther)
      members.push_back({name, there ? static_cast<uint64_t>(file.st_size) : 0,
                         file.st_mtim.tv_sec * int64_t{1'000'000'000} + file.st_mtim.tv_nsec});
  }
  above.pop_back();
}

// Lists the files of a folder and its subfolders. Links are followed; names that begin with a dot are
// skipped.
std::vector<FolderMember> list_members(const fs::path& folder) {
  std::vector<std::pair<dev_t, ino_t>> above;
  std::vector<FolderMember> members;
  list_members(folder, "", above, members);
  // Sort by folder, then key, then ending, so that the members of a sample are adjacent.
  std::ranges::sort(members, {}, [](const FolderMember& member) {
    const std::string_view key = key_of(member.name);
    const size_t slash = std::min(key.rfind('/'), key.size());
    return std::tuple(key.substr(0, slash), key.substr(slash), std::string_view(member.name));
  });
  return members;
}

class FolderSource : public SampleGroups {
 public:
  explicit FolderSource(const fs::path& path) : path_(path), members_(list_members(path)) {}

 private:
  std::optional<Named> next_member() override {
    if (next_ == members_.size()) return std::nullopt;
    const std::string& name = members_[next_++].name;
    return Named{name, name_fault(name)};
  }
  RawMember content(bool) override { return {"", path_ / members_[next_ - 1].name}; }
  std::string location_of(const std::string& name) const override {
    return printable((path_ / name).string());
  }

  fs::path path_;
  std::vector<FolderMember> members_;
  size_t next_ = 0;
};

constexpr size_t kTarBlockBytes = size_t{1} << 18;
constexpr uint64_t kEndMarkBytes = 1024;  // two blocks of zeros

// Returns the name's bytes as stored. pathname() returns null for a UTF-8 name that the locale cannot
// represent.
std::string name_of(archive_entry* entry) {
  if (const char* name = archive_entry_pathname(entry)) return name;
  const char* name = archive_entry_pathname_utf8(entry);
  return name ? name : "";
}

std::string fault_of(archive_entry* entry, const std::string& name, uint64_t size) {
  if (const std::string fault = name_fault(name); !fault.empty()) return fault;
  if (archive_entry_hardlink(entry) || archive_entry_filetype(entry) == AE_IFLNK)
    return "is a link, which is not followed";
  if (archive_entry_filetype(entry) != AE_IFREG) return "is not a regular file";
  // Its gaps cost memory and no bytes of the archive.
  if (archive_entry_sparse_count(entry) > 0) return "is a sparse file; store it whole";
  if (size > kMaxMemberBytes)
    return "claims " + std::to_string(size) + " bytes, more than the " + std::to_string(kMaxMemberBytes) +
           " allowed";
  return "";
}

class TarSource : public SampleGroups {
 public:
  // Throws DataError, naming the file and the byte (in the compressed file), if it is truncated, damaged or
  // not a tar file; so do the other methods.
  explicit TarSource(const fs::path& path)
      : path_(path), source_(open_bytes(path)), block_(kTarBlockBytes), archive_(archive_read_new()) {
    if (!archive_) throw std::bad_alloc();
    archive* tar = archive_.get();
    archive_read_support_format_tar(tar);
    archive_read_set_options(tar, "read_concatenated_archives");
    archive_read_set_read_callback(tar, &TarSource::on_read);
    archive_read_set_skip_callback(tar, &TarSource::on_skip);
    archive_read_set_callback_data(tar, this);
    if (archive_read_open1(tar) != ARCHIVE_OK) fail_as_archive();
  }

 private:
  std::optional<Named> next_member() override {
    while (!at_end_) {
      archive_entry* entry = nullptr;
      const int status = archive_read_next_header(archive_.get(), &entry);
      if (status == ARCHIVE_EOF) {
        if (zeros_at_end_ < kEndMarkBytes) fail("ends without a tar's end mark: the file is truncated");
        at_end_ = true;
        break;
      }
      if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_as_archive();
      if (archive_entry_filetype(entry) == AE_IFDIR && !archive_entry_hardlink(entry)) continue;
      size_ = static_cast<uint64_t>(std::max<int64_t>(archive_entry_size(entry), 0));
      const std::string name = name_of(entry);
      return Named{name, fault_of(entry, name, size_)};
    }
    return std::nullopt;
  }

  RawMember content(bool load) override { return {load ? read() : "", {}}; }

  std::string location_of(const std::string& name) const override {
    return path_.string() + ": " + printable(name);
  }

  std::string read() {
    std::string bytes;
    while (bytes.size() < size_) {
      // The header's size is not trusted: memory grows only with the bytes that are read.
      const size_t begin = bytes.size();
      bytes.resize(std::min<uint64_t>(size_, begin + kTarBlockBytes));
      const auto count = archive_read_data(archive_.get(), bytes.data() + begin, bytes.size() - begin);
      if (count < 0) fail_as_archive();
      bytes.resize(begin + static_cast<size_t>(count));
      if (count == 0) fail("a member ends early");
    }
    return bytes;
  }

  // Stores exceptions, because they must not pass through libarchive, which is C.
  template <class Call>
  auto guarded(archive* reader, Call call) -> decltype(call()) {
    try {
      return call();
    } catch (...) {
      error_ = std::current_exception();
      archive_set_error(reader, EIO, "reading failed");
      return ARCHIVE_FATAL;
    }
  }

  static ptrdiff_t on_read(archive* reader, void* self, const void** block) {
    auto& tar = *static_cast<TarSource*>(self);
    return tar.guarded(reader, [&] {
      const size_t count = tar.source_->read(tar.block_);
      tar.note_end(count);
      *block = tar.block_.data();
      return static_cast<ptrdiff_t>(count);
    });
  }

  static int64_t on_skip(archive* reader, void* self, int64_t count) {
    auto& tar = *static_cast<TarSource*>(self);
    return tar.guarded(reader, [&] {
      const uint64_t skipped = tar.source_->skip(static_cast<uint64_t>(count));
      if (skipped > 0) tar.zeros_at_end_ = 0;
      return static_cast<int64_t>(skipped);
    });
  }

  void note_end(size_t count) {
    const auto end = block_.rend(), begin = end - static_cast<ptrdiff_t>(count);
    const auto zeros = std::find_if(begin, end, [](char c) { return c != 0; }) - begin;
    zeros_at_end_ =
        static_cast<size_t>(zeros) == count ? zeros_at_end_ + count : static_cast<uint64_t>(zeros);
  }

  [[noreturn]] void fail(const std::string& cause) const {
    throw DataError(path_, ": byte ", source_->file_bytes(), ": ", cause,
                    "; restore the file from its source");
  }

  [[noreturn]] void fail_as_archive() {
    if (error_) std::rethrow_exception(error_);
    const char* cause = archive_error_string(archive_.get());
    fail(cause ? cause : "not a tar file");
  }

  fs::path path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> block_;
  uint64_t zeros_at_end_ = 0;  // zero bytes at the end of the bytes read so far
  std::exception_ptr error_;   // exception that the source threw inside libarchive
  uint64_t size_ = 0;          // size of the current member
  bool at_end_ = false;
  std::unique_ptr<archive, decltype([](auto* tar) { archive_read_free(tar); })> archive_;
};

InputSource describe_image_folder(const fs::path& path) {
  InputSource source;
  Hasher hasher;
  for (const FolderMember& member : list_members(path)) {
    const std::string line =
        member.name + '\0' + std::to_string(member.size) + '\0' + std::to_string(member.modified) + '\0';
    hasher.update(std::as_bytes(std::span(line)));
    source.size += member.size;
  }
  source.xxh3_128 = hasher.hexdigest();
  return source;
}

}  // namespace

std::string RawMember::load() && {
  if (path.empty()) return std::move(bytes);
  try {
    return read_file(path, kMaxMemberBytes);
  } catch (const DataError& error) {
    const std::string message = error.what(), prefix = path.string() + ": ";
    throw DataError(message.starts_with(prefix) ? message.substr(prefix.size()) : message);
  }
}

uint64_t RawMember::decoded_bytes() const {
  constexpr uint64_t kBeginning = uint64_t{1} << 17;
  const auto add_picture = [](std::span<const std::byte> beginning, uint64_t file_bytes) {
    const uint64_t pixels = declared_pixels(beginning).value_or(kMaxPixels);
    return file_bytes + (pixels <= kMaxPixels ? 3 * pixels : 0);  // more are refused before decoding
  };
  if (path.empty()) return add_picture(std::as_bytes(std::span(bytes)), bytes.size());
  try {
    const Descriptor file = open_regular(path);
    std::vector<std::byte> beginning(std::min(file.size(), kBeginning));
    file.read_at(0, beginning);
    return add_picture(beginning, file.size());
  } catch (const DataError&) {  // NOLINT: load() reports it
    return 0;
  }
}

MemberRole role_of(std::string_view name) {
  if (base_name(name).starts_with('.')) return MemberRole::kOther;
  std::string ending(name.substr(ending_of(name)));
  std::ranges::transform(ending, ending.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  using enum MemberRole;
  constexpr std::array<std::pair<std::string_view, MemberRole>, 18> kRoles{{{".jpg", kPicture},
                                                                            {".jpeg", kPicture},
                                                                            {".jpe", kPicture},
                                                                            {".png", kPicture},
                                                                            {".webp", kPicture},
                                                                            {".npy", kArray},
                                                                            {".cls", kNumber},
                                                                            {".json", kJson},
                                                                            {".gif", kUnknownPicture},
                                                                            {".bmp", kUnknownPicture},
                                                                            {".tif", kUnknownPicture},
                                                                            {".tiff", kUnknownPicture},
                                                                            {".avif", kUnknownPicture},
                                                                            {".heic", kUnknownPicture},
                                                                            {".heif", kUnknownPicture},
                                                                            {".jp2", kUnknownPicture},
                                                                            {".jxl", kUnknownPicture},
                                                                            {".ppm", kUnknownPicture}}};
  for (const auto& [known, role] : kRoles)
    if (ending == known) return role;
  return MemberRole::kOther;
}

std::string_view key_of(std::string_view name) { return name.substr(0, ending_of(name)); }

std::string folder_of(std::string_view name) {
  if (name.starts_with("./")) name.remove_prefix(2);
  const size_t slash = name.rfind('/');
  if (slash == name.npos) return "";
  return std::string(base_name(name.substr(0, slash)));
}

std::string name_fault(std::string_view name) {
  if (name.empty()) return "has no name";
  if (name.starts_with('/')) return "has an absolute name";
  if (find_invalid_utf8(name)) return "has a name that is not UTF-8";
  if (std::ranges::any_of(name, is_control)) return "has a control character in its name";
  if (name.size() > 4096) return "has a name of " + std::to_string(name.size()) + " bytes";
  if (concat("/", name, "/").find("/../") != std::string::npos)
    return "has a name that leads out of its folder (..)";
  return "";
}

std::string printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  std::string text = replace_invalid_utf8(name);
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // do not cut within a character
    text = text.substr(0, end) + "...";
  }
  std::ranges::replace_if(text, is_control, '?');
  return text;
}

std::unique_ptr<ImageSource> open_images(const fs::path& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kDirectory) return std::make_unique<FolderSource>(path);
  if (kind == PathKind::kNothing) throw file_error("open", path, ENOENT);
  if (!is_tar(path) && !is_array_file(path))
    throw UsageError(path, ": neither a folder nor .tar, .tar.gz, .tar.zst, .safetensors or .npy");
  if (kind == PathKind::kOther) throw DataError(path, ": not a regular file");
  if (!is_tar(path)) return open_image_array(path);
  return std::make_unique<TarSource>(path);
}

InputSource describe_source(const fs::path& path) {
  const std::string name = without_trailing_slash(fs::absolute(path).lexically_normal()).filename().string();
  if (find_invalid_utf8(name))
    throw UsageError(replace_invalid_utf8(path.string()),
                     ": its name is not UTF-8, and the output folder records names; rename it");
  InputSource source = path_kind(path) == PathKind::kDirectory
                           ? describe_image_folder(path)
                           : InputSource{"", fs::file_size(path), hash_file(path)};
  source.name = name;
  return source;
}

ImageScan scan_images(const fs::path& path) {
  const auto source = open_images(path);
  ImageScan scan;
  bool judged_json = false;
  while (auto sample = source->next(/*load=*/false)) {
    end_if_stopped();
    ++scan.samples;
    if (!sample->cause.empty()) continue;
    if (!sample->folder.empty()) scan.folders.insert(sample->folder);
    scan.has_numbers |= sample->number.has_value() || sample->label >= 0;
    if (scan.has_numbers || !sample->json || std::exchange(judged_json, true)) continue;
    try {
      scan.has_numbers = parse_json_label(std::move(*sample->json).load()) >= 0;
    } catch (const DataError&) {  // reported when the sample is prepared
    }
  }
  return scan;
}

int64_t parse_class_number(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;
  int64_t number = 0;
  const auto [after, error] = std::from_chars(text.data() + begin, text.data() + end, number);
  if (begin >= end || error != std::errc() || after != text.data() + end)
    throw DataError("its .cls is not a whole number");
  return checked_class(number);
}

int64_t parse_json_label(const std::string& text) {
  const nlohmann::json value = parse_json(text, "its .json");
  if (!value.is_object()) throw DataError("its .json is not a JSON object");
  const auto label = value.find("label");
  if (label == value.end() || !label->is_number_integer()) return -1;
  return checked_class(label->get<int64_t>());
}

ImageBatches::ImageBatches(std::vector<fs::path> sources, size_t source, uint64_t sample)
    : paths_(std::move(sources)), next_(source), skip_(sample) {
  for (const auto& path : paths_) changed_.push_back(fs::last_write_time(path));
}

std::optional<ImageBatch> ImageBatches::next() {
  if (next_ == paths_.size()) return std::nullopt;
  if (!source_) {
    source_ = open_images(paths_[next_]);
    for (; skip_ > 0; --skip_) source_->next(/*load=*/false);
  }
  ImageBatch batch;
  size_t files = 0;
  uint64_t bytes = 0;
  while (bytes < kImageBatchBytes && batch.bytes < kImageBatchDecodedBytes && files < kImageBatchFiles &&
         batch.samples.size() < kImageBatchSamples) {
    auto sample = with_file_at_work(paths_[next_].string(), [this] { return source_->next(/*load=*/true); });
    if (!sample) {
      std::error_code gone;  // on an error, the time is one that no file has, so the comparison fails
      if (fs::last_write_time(paths_[next_], gone) != changed_[next_])
        throw DataError(paths_[next_].string(),
                        ": changed while it was being read; run the same command again");
      batch.ends_source = true;
      source_.reset();
      ++next_;
      break;
    }
    bytes += sample->row_bytes;
    batch.bytes += sample->row_bytes;
    for (const auto* member : {&sample->picture, &sample->array, &sample->number, &sample->json})
      if (*member) bytes += (*member)->bytes.size();
    for (const auto* member : {&sample->picture, &sample->array})
      if (*member) batch.bytes += (*member)->decoded_bytes();
    files += (sample->picture && !sample->picture->path.empty()) ||
             (sample->array && !sample->array->path.empty());
    batch.samples.push_back(*std::move(sample));
  }
  return batch;
}

// Reads a tar file, plain or compressed (.gz, .zst). Nothing is extracted to disk: names are only text, and
// links are not followed.

}  // namespace dtopp::data
