// Opens, checks and cleans the output folder of `dtopp prepare images`, and reads and writes its
// progress.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/base/manifest.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

// The progress of an unfinished folder.
struct ImageRecord {
  ImageFacts facts;     // facts about the finished samples, and the finished images per origin
  size_t source = 0;    // source of the next sample; at the end, the number of sources
  uint64_t sample = 0;  // index of the next sample in that source
  ManifestFiles files;  // files written so far
};

// Replaces the folder's record. The record is on the device when the call returns.
void write_image_record(const std::filesystem::path& folder, const ImageRecord& record);

// Returns the facts of a complete folder after checking its files against its manifest. Returns nullopt if
// the folder is not complete. Changes nothing. Throws UsageError if a file does not belong to a preparation
// or if another job made the folder. Throws DataError if a file is damaged.
std::optional<ImageFacts> find_complete_images(const std::filesystem::path& folder, const ImageJob& job);

// Returns the progress of an unfinished folder. If the folder has no record yet, writes and returns its first
// one. Throws as find_complete_images() does. Precondition: this process has locked the folder.
ImageRecord begin_image_folder(const std::filesystem::path& folder, ImageJob job);

// Removes the files that only an unfinished folder needs. Does nothing without an intact record of dtopp.
void clear_up_images(const std::filesystem::path& folder);

// Returns how the job `now` differs from the job that made a folder, as the part of a message after the
// folder's name. Returns "" if the jobs agree.
std::string job_difference(const ImageJob& there, const ImageJob& now);

}  // namespace dtopp
