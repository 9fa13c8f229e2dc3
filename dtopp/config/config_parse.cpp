#include <set>
#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "dtopp/base/errors.h"
#include "dtopp/config/config_tree.h"

namespace dtopp::config {
namespace {

using Kind = ConfigNode::Kind;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxNodes = 100000;
constexpr size_t kMaxKeys = 1000;  // per mapping; lookup is linear

// Builds the tree from the parser's events, so the parser stops as soon as a limit is exceeded.
//
// YAML::Load would need 70 lines less, but it expands aliases first, so they could not be rejected.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::shared_ptr<const std::string> source, bool with_lines)
      : source_(std::move(source)), with_lines_(with_lines) {}

  ConfigNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    add(make(Kind::kNull, mark, "?"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    fail(mark, "aliases (*name) are not allowed; share settings through base: other.yaml");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                const std::string& value) override {
    ConfigNode node = make(Kind::kScalar, mark, tag);
    node.text = value;
    node.quoted = tag == "!";  // yaml-cpp's tag for a quoted scalar
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {
    open(make(Kind::kList, mark, tag), mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {
    open(make(Kind::kMapping, mark, tag), mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    ConfigNode node;
    std::set<std::string> names;  // keys of a mapping so far
    int key_line = 0;             // 0: the next event is a key
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& cause) const {
    throw UsageError(make_node(mark).location() + ": " + cause);
  }

  ConfigNode make_node(const YAML::Mark& mark) const {
    ConfigNode node;
    node.source = source_;
    if (with_lines_) node.line = mark.line + 1;
    return node;
  }

  ConfigNode make(Kind kind, const YAML::Mark& mark, const std::string& tag) {
    if (++count_ > kMaxNodes) fail(mark, "more than " + std::to_string(kMaxNodes) + " values");
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark, "tags (" + quote_for_message(tag) + ") are not allowed");
    ConfigNode node = make_node(mark);
    node.kind = kind;
    if (expects_key()) {
      if (kind != Kind::kScalar) fail(mark, "a key must be a word (is a bracket left open?)");
    }
    return node;
  }

  bool expects_key() const {
    return !open_.empty() && open_.back().node.kind == Kind::kMapping &&
           open_.back().node.keys.size() == open_.back().node.items.size();
  }

  void open(ConfigNode node, const YAML::Mark& mark) {
    if (open_.size() >= kMaxDepth) fail(mark, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    open_.push_back({std::move(node), {}, 0});
  }

  void close() {
    ConfigNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  void add(ConfigNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (expects_key()) {
      if (!parent.names.insert(node.text).second)
        throw UsageError(node.location() + ": duplicate key " + quote_for_message(node.text));
      if (parent.node.keys.size() >= kMaxKeys)
        throw UsageError(node.location() + ": more than " + std::to_string(kMaxKeys) +
                         " keys in one section");
      parent.node.keys.push_back(std::move(node.text));
      parent.key_line = node.line;
      return;
    }
    if (parent.node.kind == Kind::kMapping) node.line = parent.key_line;
    parent.node.items.push_back(std::move(node));
  }

  std::shared_ptr<const std::string> source_;
  bool with_lines_;
  ConfigNode root_;
  std::vector<Open> open_;
  size_t count_ = 0;
};

// The length of the UTF-8 character that begins at `at`; 0 if none does. Surrogates and overlong forms are
// accepted, because they do no harm here.
size_t utf8_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

}  // namespace

// YAML forbids control characters; yaml-cpp would treat some of them as the end of the file.
void require_text(std::string_view text, const std::string& source) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (length == 0 || control)
      throw UsageError(source + ": not a UTF-8 text file: byte " + std::to_string(at) +
                       (control ? " is a control character" : " begins no character"));
    at += length;
  }
}

ConfigNode parse_config(const std::string& text, const std::string& source, bool with_lines) {
  if (text.size() > kMaxConfigBytes)
    throw UsageError(source + ": larger than " + std::to_string(kMaxConfigBytes) + " bytes");
  require_text(text, source);
  const auto shared_source = std::make_shared<const std::string>(source);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    TreeBuilder builder(shared_source, with_lines);
    if (!parser.HandleNextDocument(builder)) {
      ConfigNode empty;
      empty.source = shared_source;
      return empty;
    }
    TreeBuilder second(shared_source, with_lines);
    if (parser.HandleNextDocument(second)) throw UsageError(source + ": more than one YAML document");
    return builder.take();
  } catch (const YAML::Exception& error) {
    const std::string line =
        with_lines && !error.mark.is_null() ? ":" + std::to_string(error.mark.line + 1) : "";
    throw UsageError(source + line + ": not valid YAML: " + error.msg);
  }
}

}  // namespace dtopp::config
