// progress.json: how far an unfinished folder of images is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/base/manifest.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

struct ImageRecord {
  ImageFacts facts;     // of what is done; images of each origin too
  size_t source = 0;    // that the next sample is of; at the end, the number of sources
  uint64_t sample = 0;  // of that source, those before are done
  ManifestFiles files;  // written so far
};

// Replaces the folder's record; durable on return.
void write_image_record(const std::filesystem::path& folder, const ImageRecord& record);

// What a complete folder holds, its files checked against its manifest; nothing where it is not complete.
// UsageError naming what does not belong to a preparation, or when the folder was made by another job;
// DataError for what is damaged. Changes nothing.
std::optional<ImageFacts> find_complete_images(const std::filesystem::path& folder, const ImageJob& job);

// Of a folder that is locked and not complete: how far it is, or its first record, which is written. Errors
// as above.
ImageRecord begin_image_folder(const std::filesystem::path& folder, ImageJob job);

// Removes what only an unfinished folder needs, where the record that tells of it is dtopp's.
void clear_up_images(const std::filesystem::path& folder);

// How the job `now` differs from the one that a folder was made by, to follow the folder's name in a message;
// empty where it does not.
std::string job_difference(const ImageJob& there, const ImageJob& now);

}  // namespace dtopp
