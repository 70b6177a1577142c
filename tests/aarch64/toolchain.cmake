# Cross-compiles everything for aarch64, statically, against the libraries that tests/aarch64/build.sh unpacked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static")
set(CMAKE_C_FLAGS_INIT "-isystem $ENV{HEARTH_ARM64_ROOT}/usr/include -isystem $ENV{HEARTH_ARM64_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)
set(ENV{PKG_CONFIG_LIBDIR} $ENV{HEARTH_ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $ENV{HEARTH_ARM64_ROOT})
