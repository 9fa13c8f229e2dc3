#include "dtopp/data/image_preparation/sample_groups.h"

#include <utility>

namespace dtopp {
namespace {

bool is_complete(const RawSample& sample) { return sample.picture || sample.array || !sample.cause.empty(); }

bool is_picture(MemberRole role) {
  return role == MemberRole::kPicture || role == MemberRole::kUnknownPicture;
}

}  // namespace

std::optional<RawSample> SampleGroups::next(bool load) {
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

void SampleGroups::add(RawSample& sample, const Named& member, MemberRole role, bool load) {
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

}  // namespace dtopp
