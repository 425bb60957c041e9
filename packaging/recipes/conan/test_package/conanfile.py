"""Builds a program with the package, and runs the program on an emulated device."""

from conan import ConanFile
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain", "VirtualRunEnv"

    def requirements(self) -> None:
        self.requires(self.tested_reference_str)

    def layout(self) -> None:
        cmake_layout(self)

    def build(self) -> None:
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self) -> None:
        self.run(f"GPUHEAP_DEVICE=emulated:1GiB {self.cpp.build.bindir}/program", env="conanrun")
