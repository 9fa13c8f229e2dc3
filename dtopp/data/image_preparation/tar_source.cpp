#include <utility>

#include "dtopp/data/image_preparation/sample_groups.h"
#include "dtopp/data/image_preparation/tar_reader.h"

namespace dtopp {
namespace {

std::string fault_of(const TarMember& member) {
  if (const std::string fault = name_fault(member.name); !fault.empty()) return fault;
  if (member.kind == MemberKind::kLink) return "is a link, which is not followed";
  if (member.kind == MemberKind::kOther) return "is not a regular file";
  if (member.size > kMaxMemberBytes)
    return "claims " + std::to_string(member.size) + " bytes, more than the " +
           std::to_string(kMaxMemberBytes) + " allowed";
  return "";
}

class TarSource : public SampleGroups {
 public:
  explicit TarSource(const std::filesystem::path& path) : path_(path), tar_(path) {}

 private:
  std::optional<Named> next_member() override {
    const auto member = tar_.next();
    if (!member) return std::nullopt;
    return Named{member->name, fault_of(*member)};
  }
  RawMember content(bool load) override { return {load ? tar_.read() : "", {}}; }
  std::string location_of(const std::string& name) const override {
    return path_.string() + ": " + printable(name);
  }

  std::filesystem::path path_;
  TarReader tar_;
};

}  // namespace

std::unique_ptr<ImageSource> open_image_tar(const std::filesystem::path& path) {
  return std::make_unique<TarSource>(path);
}

}  // namespace dtopp
