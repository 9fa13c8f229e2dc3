#include "dtopp/data/files/resumable_folder.h"

#include <system_error>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp::data {
namespace {

constexpr char kProgressName[] = "progress.json";

[[noreturn]] void refuse(const fs::path& path) {
  throw UsageError(path.parent_path(), ": holds other files (", path.filename(),
                   ", which dtopp did not write); choose an empty or new output folder");
}

std::string describe(const JsonFields& source) {
  return source.text("name") + " (" + std::to_string(source.count("size")) + " bytes, xxh3-128 " +
         source.text("xxh3_128").substr(0, 8) + ")";
}

bool have_same_bytes(const JsonFields& a, const JsonFields& b) {
  return a.count("size") == b.count("size") && a.text("xxh3_128") == b.text("xxh3_128");
}

// Returns how the job `now` differs from the job that made a folder; "" if they agree.
std::string job_difference(const JsonFields& there, const JsonFields& now, const std::string& prefix,
                           bool names_suffice) {
  const nlohmann::json before = parse_json(there.dump(), "job"), after = parse_json(now.dump(), "job");
  nlohmann::json keys = before;
  keys.update(after);
  for (const auto& [key, unused] : keys.items()) {
    const nlohmann::json was = before.value(key, nlohmann::json()), is = after.value(key, nlohmann::json());
    if (key != "sources" && was != is)
      return "was made with " + prefix + key + " " + dump_json(was) + ", not " + dump_json(is);
  }
  const auto old_sources = there.objects("sources"), sources = now.objects("sources");
  for (size_t i = 0; i < std::min(old_sources.size(), sources.size()); ++i) {
    if (names_suffice && old_sources[i].text("name") == sources[i].text("name")) continue;
    if (!have_same_bytes(old_sources[i], sources[i]))
      return "was made from other data: source " + std::to_string(i + 1) + " was " +
             describe(old_sources[i]) + ", now " + describe(sources[i]);
  }
  if (old_sources.size() == sources.size()) return "";
  return "was made from " + std::to_string(old_sources.size()) + " sources, not " +
         std::to_string(sources.size());
}

}  // namespace

void require_finished(const fs::path& folder, const FolderKind& kind) {
  if (!is_there(folder / kManifestName) && begins_as_manifest(folder / kProgressName, kind.progress_format))
    throw DataError(folder, ": its preparation was not finished; run the same `dtopp prepare` again");
}

ResumableFolder::ResumableFolder(fs::path path, FolderKind kind, ordered_json settings,
                                 const std::vector<InputSource>& sources)
    : path_(std::move(path)), kind_(std::move(kind)) {
  settings["sources"] = ordered_json::array();
  for (const InputSource& source : sources)
    settings["sources"].push_back(
        {{"name", source.name}, {"size", source.size}, {"xxh3_128", source.xxh3_128}});
  job_ = dump_json(settings);
  find_complete();
}

bool ResumableFolder::has_progress() const {
  return begins_as_manifest(path_ / kProgressName, kind_.progress_format);
}

void ResumableFolder::require_ours() const {
  for (const auto& [name, format] :
       {std::pair(kManifestName, kind_.manifest_format), std::pair(kProgressName, kind_.progress_format)}) {
    if (!is_there(path_ / name)) continue;
    if (begins_as_manifest(path_ / name, format)) return;
    refuse(path_ / name);
  }
  if (!is_there(path_)) return;
  for (const fs::path& path : list_directory(path_)) {
    const bool first_record = is_temporary_name_of(kProgressName, path.filename().string()) &&
                              begins_as_manifest(path, kind_.progress_format);
    if (path.filename() != ".lock" && !first_record) refuse(path);
  }
}

std::string ResumableFolder::difference_from(const Manifest& record, const char* name,
                                             bool names_suffice) const {
  return job_difference(JsonFields(record.about, (path_ / name).string()).object("job"),
                        JsonFields(job_, "job"), kind_.setting_prefix, names_suffice);
}

void ResumableFolder::refuse_other_job(const std::string& difference) const {
  if (!difference.empty()) throw UsageError(path_, ": ", difference, "; choose another output folder");
}

void ResumableFolder::find_complete() {
  require_ours();
  if (!is_there(path_ / kManifestName)) return;
  Manifest manifest = with_remedy([&] { return read_manifest(path_, kind_.manifest_format); });
  refuse_other_job(difference_from(manifest, kManifestName, false));
  with_remedy([&] { verify_content(path_, manifest.files); });
  complete_ = std::move(manifest);
}

std::optional<Manifest> ResumableFolder::begin() {
  if (complete_ && !has_progress()) return std::nullopt;
  make_directories(path_);
  lock_.emplace(path_);
  if (!complete_) find_complete();  // again, now that no other process writes there
  if (complete_) {
    clear_up();
    return std::nullopt;
  }
  std::optional<Manifest> progress;
  if (has_progress()) {
    progress = with_remedy([&] { return read_manifest(path_, kind_.progress_format, kProgressName); });
    const std::string difference = difference_from(*progress, kProgressName, false);
    const auto holds_bytes = [](const auto& file) { return file.second.size > 0; };
    if (!difference.empty() && std::ranges::any_of(progress->files, holds_bytes)) {
      refuse_other_job(difference_from(*progress, kProgressName, true));
      restart_reason_ = difference;
    }
    if (!difference.empty()) progress.reset();
  }
  remove_temporaries();
  return progress;
}

std::string ResumableFolder::with_job(ordered_json about) const {
  about["job"] = parse_json(job_, "job");
  return dump_json(about);
}

void ResumableFolder::record(ordered_json about, const ManifestFiles& files) const {
  write_file_atomically(path_ / kProgressName,
                        format_manifest({kind_.progress_format, with_job(std::move(about)), files}));
}

void ResumableFolder::finish(ordered_json about, const ManifestFiles& files) const {
  write_file_atomically(path_ / kManifestName,
                        format_manifest({kind_.manifest_format, with_job(std::move(about)), files}));
  clear_up();
}

void ResumableFolder::remove_temporaries() const {
  for (const std::string& name : kind_.renamed) remove_abandoned(path_ / name);
  for (const char* name : {kProgressName, kManifestName}) remove_abandoned(path_ / name);
}

// Removes progress.json last: as long as it exists, the next run removes the leftovers. A damaged record
// stays, because the folder is complete without it.
void ResumableFolder::clear_up() const {
  if (!has_progress()) return;
  try {
    read_manifest(path_, kind_.progress_format, kProgressName);
  } catch (const DataError&) {
    return;
  }
  remove_temporaries();
  std::error_code gone;
  for (const std::string& name : kind_.unlisted) fs::remove(path_ / name, gone);
  sync_directory(path_);
  fs::remove(path_ / kProgressName, gone);
  sync_directory(path_);
}

}  // namespace dtopp::data
