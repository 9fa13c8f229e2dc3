// Sends and receives lines of text over TCP, for a thread that waits for several connections with poll().
//
// Throws:        std::runtime_error with the reason if a socket cannot be opened or connected
// Collective:    no
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp::distributed {

// Opens a socket that listens on 127.0.0.1 only or on every interface. The caller closes it. Port 0 is
// replaced by the free port that the system chose.
int listening_socket(uint16_t& port, bool loopback_only);

// One end of a connection. Only connect() blocks.
class LineSocket {
 public:
  explicit LineSocket(int descriptor) : descriptor_(descriptor) {}  // takes a connected socket
  // Throws std::runtime_error if no server answers.
  static LineSocket connect(const std::string& host, uint16_t port);
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&&) = delete;

  int descriptor() const { return descriptor_; }
  // Sends a line. Bytes that the connection does not accept now are sent by a later send().
  void send(const std::string& line);
  // Whether the system has accepted all bytes.
  bool is_idle() const { return outgoing_.empty(); }
  // Returns the complete lines that have arrived since the last call.
  std::vector<std::string> receive();
  // True when no further line can arrive: the other end is closed, or its process has ended.
  bool has_ended() const { return ended_; }
  // Ends this direction: the other end reads all lines and then the end. close() would discard lines that the
  // other end has not read, if this end has unread bytes.
  void finish();

 private:
  int descriptor_;
  std::string incoming_, outgoing_;
  bool ended_ = false;
};

}  // namespace dtopp::distributed
