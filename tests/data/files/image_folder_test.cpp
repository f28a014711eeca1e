#include "millrace/data/files/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/files/stored_sets.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ImageFolderTest : public StoredSets {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    write_bytes(path(name), bytes);
  }
};

TEST_F(ImageFolderTest, ClassesAreNumberedByName) {
  put("n02/b.JPEG", "3");
  put("n02/a.png", "2");
  put("n01/z.jpg", "1");
  put("n10/deep/er/x.PnG", "5");
  put("n10/Z.jpeg", "4");
  const ImageFolder source(path(""), 3, nullptr);
  EXPECT_EQ(read_all(source), (std::vector<Picture>{{0, "1"}, {1, "2"}, {1, "3"}, {2, "4"}, {2, "5"}}));
  EXPECT_EQ(source.class_names(), (std::vector<std::string>{"n01", "n02", "n10"}));
  EXPECT_EQ(source.classes(), 3);
  EXPECT_EQ(source.place(4), path("") + "n10/deep/er/x.PnG");
  EXPECT_EQ(source.stored_bytes(), 5);
  EXPECT_EQ(source.ignored(), 0);
}

TEST_F(ImageFolderTest, OtherFilesAreCountedAndHiddenOnesAreNot) {
  put("a/1.jpg", "1");
  put("a/notes.txt", "");
  put("a/jpg", "");
  put("a/.2.jpg", "");
  put("a/.hidden/3.jpg", "");
  put("b/1.png", "2");
  put("b/1.gif", "");
  put(".cache/1.jpg", "");
  put("top.jpg", "");
  const ImageFolder source(path(""), 0, nullptr);
  EXPECT_EQ(source.size(), 2);
  EXPECT_EQ(source.ignored(), 3);
}

TEST_F(ImageFolderTest, ThreadsDoNotChangeTheOrder) {
  for (int i = 0; i < 200; ++i) put("c" + std::to_string(i % 23) + "/" + std::to_string(i) + ".jpg", std::to_string(i));
  const ImageFolder one(path(""), 0, nullptr, 1), four(path(""), 0, nullptr, 4);
  EXPECT_EQ(read_all(one), read_all(four));
  EXPECT_EQ(one.fingerprint(), four.fingerprint());
  put("c1/new.jpg", "x");
  EXPECT_NE(one.fingerprint(), ImageFolder(path(""), 0, nullptr).fingerprint());
}

TEST_F(ImageFolderTest, AClassWithoutPicturesIsNamed) {
  put("a/1.jpg", "1");
  put("b/readme", "");
  put("c/1.jpg", "2");
  const std::string said = path("") + "b: no .jpg, .jpeg or .png file in the class folder, 1 others";
  EXPECT_EQ(message_of<std::invalid_argument>([&] { ImageFolder(path(""), 0, nullptr); }),
            said + "; add pictures or remove the folder");
  SkipLog skip;
  const ImageFolder source(path(""), 0, &skip);
  EXPECT_EQ(skip.reasons(), std::vector<std::string>{said});
  EXPECT_EQ(read_all(source), (std::vector<Picture>{{0, "1"}, {2, "2"}}));  // c keeps its number
}

TEST_F(ImageFolderTest, AFileThatCannotBeUsedIsABadSample) {
  put("a/1.jpg", "");
  put("a/2.jpg", "2");
  put("a/3.jpg", "3");
  const ImageFolder source(path(""), 0, nullptr);
  fs::remove(path("a/2.jpg"));
  EXPECT_THAT(message_of<BadSample>([&] { read(source, 0); }), HasSubstr("a/1.jpg: 0 bytes; a picture has 1-"));
  EXPECT_THAT(message_of<BadSample>([&] { read(source, 1); }), HasSubstr("a/2.jpg: cannot be opened: No such file"));
  EXPECT_EQ(read(source, 2).bytes, "3");
}

TEST_F(ImageFolderTest, ReadingReusesTheCallersMemory) {
  put("a/1.jpg", noise(1, 5000));
  put("a/2.jpg", noise(2, 100));
  const ImageFolder source(path(""), 0, nullptr);
  StoredImage image;
  image.raw_size = 32;  // from another source
  source.read(0, image);
  const uint8_t* memory = image.bytes.data();
  source.read(1, image);
  source.read(0, image);
  EXPECT_EQ(image.bytes.data(), memory);
  EXPECT_EQ(image.raw_size, 0);
}

TEST_F(ImageFolderTest, SaysWhatToNameInstead) {
  const auto complaint = [](const std::string& name, int classes) {
    return message_of<std::invalid_argument>([&] { ImageFolder(name, classes, nullptr); });
  };
  EXPECT_THAT(complaint(path("nowhere"), 0), HasSubstr("does not exist; name a folder with one folder of pictures"));
  EXPECT_THAT(complaint(path(""), 0), HasSubstr("holds no folder"));
  put("a/1.jpg", "");
  put("b/1.jpg", "");
  EXPECT_THAT(complaint(path("a/1.jpg"), 0), HasSubstr("is no folder"));
  EXPECT_THAT(complaint(path(""), 1), HasSubstr("2 class folders, the model has 1 classes; set model.classes: 2"));
}

}  // namespace
}  // namespace millrace::data
