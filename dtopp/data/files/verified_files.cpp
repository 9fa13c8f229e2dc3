#include "dtopp/data/files/verified_files.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <time.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/data/files/resumable_folder.h"

namespace dtopp::data {
namespace {

constexpr char kVerifiedFormat[] = "dtopp verified files 2";
constexpr int64_t kNanoseconds = 1'000'000'000;
// The resolution of a file system's times may be two seconds. If a file changed more recently, a later change
// could leave the same time.
constexpr int64_t kSettled = 2 * kNanoseconds;

int64_t nanoseconds(const timespec& time) { return time.tv_sec * kNanoseconds + time.tv_nsec; }

// Attributes of a file, at least one of which changes with every write.
struct Identity {
  std::string text;  // device, inode, size, modified, changed; the times in nanoseconds since 1970
  int64_t changed = 0;
};

std::optional<Identity> identify(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const int64_t changed = nanoseconds(status.st_ctim);
  std::string text;
  for (const auto number : {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
                            static_cast<int64_t>(status.st_size), nanoseconds(status.st_mtim), changed})
    text.append(text.empty() ? "" : " ").append(std::to_string(number));
  return Identity{text, changed};
}

bool has_settled(const Identity& file) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return file.changed + kSettled < nanoseconds(now);
}

struct VerifiedFile {
  ManifestEntry content;
  std::string identity;

  bool operator==(const VerifiedFile&) const = default;
};

using VerifiedFiles = std::map<std::string, VerifiedFile>;

VerifiedFiles read_record(const fs::path& folder) {
  try {
    const Manifest record = read_manifest(folder, kVerifiedFormat, kVerifiedName);
    const JsonFields identities(record.about, kVerifiedName);
    VerifiedFiles files;
    for (const auto& [name, content] : record.files) files[name] = {content, identities.text(name)};
    return files;
  } catch (const DataError&) {
    return {};  // a missing or damaged record: all files are read again
  }
}

void write_record(const fs::path& folder, const VerifiedFiles& files) {
  ordered_json about = ordered_json::object();
  ManifestFiles contents;
  for (const auto& [name, file] : files) {
    contents[name] = file.content;
    about[name] = file.identity;
  }
  const fs::path path = folder / kVerifiedName;
  if (is_there(path) && !begins_as_manifest(path, kVerifiedFormat)) return;
  try {
    write_file_atomically(path, format_manifest({kVerifiedFormat, dump_json(about), contents}));
  } catch (const DataError&) {  // the folder may be read-only; the files are then read again next time
  }
}

// Throws DataError, naming the first file, if a size or checksum differs from the manifest.
//
// Recorded files that have not changed since are read only if `also_known`. The files that were read are
// added to the record. If the record cannot be written, or a file that dtopp did not write has its name, the
// files are read again next time.
void verify_files(const fs::path& folder, const ManifestFiles& files, bool also_known) {
  verify_sizes(folder, files);
  const VerifiedFiles before = read_record(folder);
  VerifiedFiles verified;
  for (const auto& [name, content] : files) {
    const auto identity = identify(folder / name);
    const auto known = before.find(name);
    const bool unchanged = !also_known && identity && known != before.end() &&
                           known->second == VerifiedFile{content, identity->text};
    const bool settled = identity && has_settled(*identity);  // must be evaluated before the file is read
    if (!unchanged) verify_content(folder, {{name, content}});
    // Do not record a file that was changed or replaced while it was read.
    const auto now = settled ? identify(folder / name) : std::nullopt;
    if (unchanged || (now && now->text == identity->text)) verified[name] = {content, identity->text};
  }
  if (verified != before) write_record(folder, verified);
}

}  // namespace

Manifest read_verified_manifest(const fs::path& folder, const std::string& format, Verify verify) {
  return with_remedy([&] {
    Manifest manifest = read_manifest(folder, format);
    if (verify == Verify::kSizes)
      verify_sizes(folder, manifest.files);
    else
      verify_files(folder, manifest.files, /*also_known=*/verify == Verify::kAll);
    return manifest;
  });
}

}  // namespace dtopp::data
