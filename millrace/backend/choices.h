// Choices among kernels for the same work that were measured: kept in the session, and in a file if one is given.
// Remembered choices are what makes two runs bit-equal: two algorithms round differently, and a measurement alone may
// fall either way.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace millrace::backend {

class Choices {
 public:
  explicit Choices(std::string file);

  std::optional<std::string> find(const std::string& question) const;
  void read_file();  // another process may have chosen meanwhile
  void remember(const std::string& question, const std::string& answer);

  // Held while one process measures, so that the others wait for what it chooses: all replicas must compute alike.
  class Lock {
   public:
    explicit Lock(const Choices& choices);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    bool held() const { return descriptor_ >= 0; }  // not without a file, or where its folder cannot be made

   private:
    int descriptor_ = -1;
  };

 private:
  std::string file_;
  std::map<std::string, std::string> chosen_;
};

}  // namespace millrace::backend
