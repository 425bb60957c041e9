"""Conan recipe of gpuheap for C and C++. conandata.yml has the tarball's address and hash."""

from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, get


class Gpuheap(ConanFile):
    name = "gpuheap"
    description = "GPU memory that can be accounted for, and that comes back"
    homepage = "https://github.com/gpuheap/gpuheap"
    url = homepage
    license = "MIT OR Apache-2.0"
    topics = ("cuda", "gpu", "memory", "allocator")
    package_type = "library"
    settings = "os", "arch"
    options = {"shared": [True, False]}
    default_options = {"shared": True}

    def validate(self) -> None:
        if self.settings.os != "Linux" or str(self.settings.arch) not in self._sources():
            raise ConanInvalidConfiguration("gpuheap is for Linux on x86_64 and armv8")

    def build(self) -> None:
        get(self, **self._sources()[str(self.settings.arch)], strip_root=True)

    def package(self) -> None:
        copy(self, "LICENSE-*", self.build_folder, str(Path(self.package_folder) / "licenses"))
        library = "libgpuheap_capi.so" if self.options.shared else "libgpuheap_capi.a"
        for each in ["include/*", f"lib/{library}", "lib/emulated/*"]:
            copy(self, each, self.build_folder, self.package_folder)

    def package_info(self) -> None:
        self.cpp_info.set_property("cmake_file_name", "gpuheap")
        self.cpp_info.set_property("cmake_target_name", "gpuheap::gpuheap")
        self.cpp_info.set_property("pkg_config_name", "gpuheap")
        self.cpp_info.libs = ["gpuheap_capi"]
        if not self.options.shared:
            self.cpp_info.system_libs = ["pthread", "dl", "m"]

    def _sources(self) -> dict:
        return self.conan_data["sources"][self.version]
