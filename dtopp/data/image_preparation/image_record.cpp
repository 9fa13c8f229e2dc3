#include "dtopp/data/image_preparation/image_record.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"
#include "dtopp/data/image_preparation/image_writer.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

std::string describe(const ImageOrigin& origin) {
  return origin.name + " (" + std::to_string(origin.size) + " bytes, xxh3-128 " +
         origin.xxh3_128.substr(0, 8) + ")";
}

std::optional<ImageRecord> read_image_record(const fs::path& folder) {
  const fs::path path = folder / kProgressName;
  if (!has_prepare_record(folder, image_folder_kind())) return std::nullopt;
  const Manifest manifest =
      with_remedy([&] { return read_manifest(folder, kImageRecordFormat, kProgressName); });
  const JsonFields position = JsonFields(manifest.about, path.string()).object("position");
  ImageRecord record{read_image_facts(manifest, path), position.count("source"), position.count("sample"),
                     manifest.files};
  if (record.source > record.facts.job.origins.size())
    position.fail("source", "lies beyond the list of sources");
  return record;
}

void require_same_images(const fs::path& folder, const ImageJob& there, const ImageJob& now) {
  const std::string difference = job_difference(there, now);
  if (!difference.empty())
    throw UsageError(folder.string() + ": " + difference + "; choose another output folder");
}

}  // namespace

void write_image_record(const fs::path& folder, const ImageRecord& record) {
  nlohmann::ordered_json about = to_json(record.facts);
  about["position"] = {{"source", record.source}, {"sample", record.sample}};
  write_file_atomically(folder / kProgressName,
                        format_manifest({kImageRecordFormat, dump_json(about), record.files}));
}

std::optional<ImageFacts> find_complete_images(const fs::path& folder, const ImageJob& job) {
  require_ours(folder, image_folder_kind());
  if (!is_there(folder / kManifestName)) return std::nullopt;
  const Manifest manifest = with_remedy([&] { return read_manifest(folder, kImageDataFormat); });
  ImageFacts facts = with_remedy([&] { return read_image_facts(manifest, folder / kManifestName); });
  require_same_images(folder, facts.job, job);
  with_remedy([&] { verify_content(folder, manifest.files); });
  return facts;
}

ImageRecord begin_image_folder(const fs::path& folder, ImageJob job) {
  require_ours(folder, image_folder_kind());  // again, now under the lock: no other process writes there
  if (auto record = read_image_record(folder)) {
    require_same_images(folder, record->facts.job, job);
    remove_temporaries(folder, image_folder_kind());
    return *std::move(record);
  }
  remove_temporaries(folder, image_folder_kind());
  ImageRecord record;
  record.facts.job = std::move(job);
  write_image_record(folder, record);  // first, because it marks the folder as dtopp's
  return record;
}

void clear_up_images(const fs::path& folder) {
  try {
    if (!read_image_record(folder)) return;
  } catch (const DataError&) {
    return;  // a damaged record may stay: the folder is complete without it
  }
  remove_temporaries(folder, image_folder_kind());
  ImageWriter::remove_streams(folder);
  remove_prepare_record(folder);
}

std::string job_difference(const ImageJob& there, const ImageJob& now) {
  if (there.size != now.size)
    return "was made with --size " + std::to_string(there.size) + ", not " + std::to_string(now.size) +
           " (0: not resized)";
  if (there.channels != now.channels)
    return "was made with --channels " + std::to_string(there.channels) + ", not " +
           std::to_string(now.channels);
  if (there.scale != now.scale || there.shift != now.shift) return "was made with another --scale or --shift";
  for (size_t i = 0; i < std::min(there.origins.size(), now.origins.size()); ++i) {
    if (!there.origins[i].same_content(now.origins[i]))
      return "was made from other images: source " + std::to_string(i + 1) + " was " +
             describe(there.origins[i]) + ", now " + describe(now.origins[i]);
  }
  if (there.origins.size() != now.origins.size())
    return "was made from " + std::to_string(there.origins.size()) + " sources of images, not " +
           std::to_string(now.origins.size());
  return "";
}

}  // namespace dtopp
