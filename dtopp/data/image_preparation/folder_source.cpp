#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/data/image_preparation/image_source.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

struct FolderMember {
  std::string name;  // path relative to the folder, with "/"
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since 1970
};

// Lists the files of a folder and its subfolders. Links are followed; names that begin with a dot are
// skipped.
class FolderList {
 public:
  explicit FolderList(const fs::path& folder) {
    walk(folder, "");
    // Sort by folder, then key, then ending, so that the members of a sample are adjacent.
    std::ranges::sort(members_, {}, [](const FolderMember& member) {
      const std::string_view key = key_of(member.name);
      const size_t slash = std::min(key.rfind('/'), key.size());
      return std::tuple(key.substr(0, slash), key.substr(slash), std::string_view(member.name));
    });
  }
  std::vector<FolderMember> take() && { return std::move(members_); }

 private:
  void walk(const fs::path& folder, const std::string& prefix) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) throw file_error("list", folder, errno);
    const std::pair identity(status.st_dev, status.st_ino);
    if (std::ranges::find(above_, identity) != above_.end())
      throw DataError(folder.string() + ": is a link back to a folder that contains it; remove the link");
    above_.push_back(identity);
    for (const fs::path& path : list_directory(folder)) {
      const std::string name = path.filename().string();
      if (!name.starts_with('.')) add(path, prefix + name);
    }
    above_.pop_back();
  }

  void add(const fs::path& path, const std::string& name) {
    end_if_stopped();
    struct stat status {};
    const bool there = ::stat(path.c_str(), &status) == 0;  // if not, opening it reports the reason
    if (there && S_ISDIR(status.st_mode)) return walk(path, name + "/");
    if (role_of(name) == MemberRole::kOther) return;
    members_.push_back({name, there ? static_cast<uint64_t>(status.st_size) : 0,
                        status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec});
  }

  std::vector<std::pair<dev_t, ino_t>> above_;
  std::vector<FolderMember> members_;
};

class FolderSource : public SampleGroups {
 public:
  explicit FolderSource(const fs::path& path) : path_(path), members_(FolderList(path).take()) {}

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

}  // namespace

std::unique_ptr<ImageSource> open_image_folder(const fs::path& path) {
  return std::make_unique<FolderSource>(path);
}

InputSource describe_image_folder(const fs::path& path) {
  InputSource source;
  Hasher hasher;
  for (const FolderMember& member : FolderList(path).take()) {
    const std::string line =
        member.name + '\0' + std::to_string(member.size) + '\0' + std::to_string(member.modified) + '\0';
    hasher.update(std::as_bytes(std::span(line)));
    source.size += member.size;
  }
  source.xxh3_128 = hasher.hexdigest();
  return source;
}

}  // namespace dtopp::data
