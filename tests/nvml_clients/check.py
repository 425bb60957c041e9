"""Checks NVIDIA's nvidia-ml-py (pynvml) and nvitop on the emulated libnvidia-ml.so.1.

`run` installs their wheels, builds the emulated libraries, sets the loader's path and runs this
script. Each check runs in a separate process, because the libraries read their environment once.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30

# Pid of the process that starts the checks. DESCRIPTION lists the pid.
OWNER = int(os.environ.get("CHECKED_BY", os.getpid()))

# Description of the emulated machine. Its processes include ended processes, and a process whose
# memory the driver does not report.
DESCRIPTION = {
    "driver": "570.86.15",
    "cuda": "12.8",
    "failures": {"nvmlDeviceGetDecoderUtilization": "NO_PERMISSION"},
    "devices": [
        {
            "profile": "h200",
            "uuid": "GPU-11111111-2222-3333-4444-555555555555",
            "pci": "00000000:19:00.0",
            "serial": "1654",
            "memory": {"total": 140 * GIB, "reserved": GIB, "unaccounted": 2 * GIB},
            "processes": [
                {"pid": OWNER, "bytes": 30 * GIB},
                {"pid": 4_194_304, "bytes": 10 * GIB, "name": "gone"},
                {"pid": 4_194_305, "bytes": 5 * GIB, "list": "graphics"},
                {"pid": 4_194_306, "bytes": None, "list": "mps"},
            ],
            "utilization": {"gpu": 77, "memory": 12, "encoder": 3},
            "temperature": 41,
            "fan": 35,
            "power": {"usage": 250_000, "limit": 700_000},
            "clocks": {"graphics": 1_900, "sm": 1_905, "memory": 3_201, "video": 1_500},
            "performance_state": 0,
            "persistence": True,
            "compute_mode": "exclusive_process",
            "ecc": True,
            "ecc_errors": {"corrected": 3, "uncorrected": 1},
            "pcie": {"generation": 5, "width": 16, "sent": 2_000, "received": 1_000},
        },
        {
            "profile": "t4",
            "mig": [
                {"size": "1g.5gb", "gpu_instance": 9, "memory": {"total": 5 * GIB}},
                {"size": "2g.10gb", "gpu_instance": 3, "memory": {"total": 10 * GIB}},
            ],
            "processes": [{"pid": OWNER, "bytes": GIB, "instance": 1}],
        },
        {"profile": "16GiB", "failures": {"nvmlDeviceGetMemoryInfo_v2": "GPU_IS_LOST"}},
    ],
}


def fails(error, function, *arguments):
    """Asserts that a call raises the given class of error."""
    try:
        value = function(*arguments)
    except error:
        return
    raise AssertionError(f"{function.__name__}{arguments} gives {value!r}, and no {error.__name__}")


def check_pynvml():
    import pynvml as nvml

    fails(nvml.NVMLError_Uninitialized, nvml.nvmlShutdown)
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlSystemGetDriverVersion() == "570.86.15"
    assert nvml.nvmlSystemGetNVMLVersion() == "12.570.86.15"
    assert nvml.nvmlSystemGetCudaDriverVersion() == 12_080
    assert nvml.nvmlSystemGetCudaDriverVersion_v2() == 12_080
    assert nvml.nvmlDeviceGetCount() == 3
    described = DESCRIPTION["devices"][0]
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    for found in (
        nvml.nvmlDeviceGetHandleByUUID(described["uuid"]),
        nvml.nvmlDeviceGetHandleByPciBusId("0000:19:00.0"),
        nvml.nvmlDeviceGetHandleBySerial("1654"),
    ):
        assert nvml.nvmlDeviceGetIndex(found) == 0
    fails(nvml.NVMLError_InvalidArgument, nvml.nvmlDeviceGetHandleByIndex, 3)
    fails(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetHandleByUUID, "GPU-0")
    assert nvml.nvmlDeviceGetName(device) == "emulated NVIDIA H200"
    assert nvml.nvmlDeviceGetUUID(device) == described["uuid"]
    assert nvml.nvmlDeviceGetMinorNumber(device) == 0
    assert nvml.nvmlDeviceGetSerial(device) == "1654"
    assert nvml.nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
    pci = nvml.nvmlDeviceGetPciInfo(device)
    assert (pci.domain, pci.bus, pci.device) == (0, 0x19, 0)
    assert (pci.busId, pci.busIdLegacy) == ("00000000:19:00.0", "0000:19:00.0")

    # The processes hold 45 GiB, and 2 GiB are unaccounted. Version 1 of nvmlDeviceGetMemoryInfo
    # also counts the reserved 1 GiB as used.
    second = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    assert (second.total, second.reserved) == (140 * GIB, GIB)
    assert (second.used, second.free) == (47 * GIB, 92 * GIB)
    first = nvml.nvmlDeviceGetMemoryInfo(device)
    assert (first.total, first.used, first.free) == (140 * GIB, 48 * GIB, 92 * GIB)
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Total == 256 * GIB

    compute, gone = described["processes"][:2]
    for versions in (
        (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ),
        (
            nvml.nvmlDeviceGetComputeRunningProcesses_v2,
            nvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
        ),
    ):
        lists = [[(one.pid, one.usedGpuMemory) for one in ask(device)] for ask in versions]
        assert lists == [
            [(compute["pid"], 30 * GIB), (gone["pid"], 10 * GIB)],
            [(4_194_305, 5 * GIB)],
            [(4_194_306, None)],
        ], lists
    # Call version 1 by its address, because the bindings' function calls a later version.
    count, infos = ctypes.c_uint(0), (ctypes.c_uint64 * 8)()
    ask = nvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses")
    assert ask(device, ctypes.byref(count), None) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 2 and ask(device, ctypes.byref(count), infos) == nvml.NVML_SUCCESS
    assert (infos[2] & 0xFFFFFFFF, infos[3]) == (gone["pid"], 10 * GIB)
    assert nvml.nvmlSystemGetProcessName(gone["pid"]) == "gone"
    assert nvml.nvmlSystemGetProcessName(os.getpid()) == sys.executable
    fails(nvml.NVMLError_NotFound, nvml.nvmlSystemGetProcessName, 4_194_305)

    rates = nvml.nvmlDeviceGetUtilizationRates(device)
    assert (rates.gpu, rates.memory) == (77, 12)
    assert nvml.nvmlDeviceGetEncoderUtilization(device)[0] == 3
    fails(nvml.NVMLError_NoPermission, nvml.nvmlDeviceGetDecoderUtilization, device)
    assert nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU) == 41
    assert nvml.nvmlDeviceGetTemperatureV(device, nvml.NVML_TEMPERATURE_GPU) == 41
    assert nvml.nvmlDeviceGetFanSpeed(device) == 35
    assert nvml.nvmlDeviceGetPowerUsage(device) == 250_000
    assert nvml.nvmlDeviceGetPowerManagementLimit(device) == 700_000
    assert nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) == 1_905
    assert nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_MEM) == 3_201
    assert nvml.nvmlDeviceGetPerformanceState(device) == nvml.NVML_PSTATE_0
    assert nvml.nvmlDeviceGetPersistenceMode(device) == nvml.NVML_FEATURE_ENABLED
    assert nvml.nvmlDeviceGetComputeMode(device) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert nvml.nvmlDeviceGetEccMode(device) == [1, 1]
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert nvml.nvmlDeviceGetTotalEccErrors(device, uncorrected, nvml.NVML_VOLATILE_ECC) == 1
    assert nvml.nvmlDeviceGetPcieThroughput(device, nvml.NVML_PCIE_UTIL_RX_BYTES) == 1_000
    fails(nvml.NVMLError_NotSupported, nvml.nvmlDeviceGetMigMode, device)
    fails(nvml.NVMLError_FunctionNotFound, nvml.nvmlDeviceGetViolationStatus, device, 0)
    fields = nvml.nvmlDeviceGetFieldValues(device, [nvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
    assert fields[0].nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED

    divided = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetMigMode(divided) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(divided) == 7
    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(divided, 1)
    assert nvml.nvmlDeviceIsMigDeviceHandle(instance) and not nvml.nvmlDeviceIsMigDeviceHandle(
        divided
    )
    assert nvml.nvmlDeviceGetGpuInstanceId(instance) == 3
    assert nvml.nvmlDeviceGetMemoryInfo(instance).used == GIB
    listed = [
        (one.pid, one.gpuInstanceId) for one in nvml.nvmlDeviceGetComputeRunningProcesses(instance)
    ]
    assert listed == [(compute["pid"], 3)], listed
    fails(nvml.NVMLError_NotFound, nvml.nvmlDeviceGetMigDeviceHandleByIndex, divided, 2)

    lost = nvml.nvmlDeviceGetHandleByIndex(2)
    version = nvml.nvmlMemory_v2
    fails(nvml.NVMLError_GpuIsLost, nvml.nvmlDeviceGetMemoryInfo, lost, version)
    fails(nvml.NVMLError_NotSupported, nvml.nvmlDeviceGetUtilizationRates, lost)
    nvml.nvmlShutdown()
    fails(nvml.NVMLError_Uninitialized, nvml.nvmlDeviceGetCount)


def check_nvitop():
    import nvitop

    device, divided, lost = nvitop.Device.all()
    described = DESCRIPTION["devices"][0]
    assert nvitop.Device.driver_version() == "570.86.15"
    assert nvitop.Device.cuda_driver_version() == "12.8"
    assert device.uuid() == described["uuid"] and device.bus_id() == described["pci"]
    assert (device.memory_total(), device.memory_used()) == (140 * GIB, 47 * GIB)
    assert device.memory_free() == 92 * GIB
    assert (device.gpu_utilization(), device.memory_utilization()) == (77, 12)
    assert (device.encoder_utilization(), device.decoder_utilization()) == (3, nvitop.NA)
    assert (device.temperature(), device.fan_speed()) == (41, 35)
    assert (device.power_usage(), device.power_limit()) == (250_000, 700_000)
    assert (device.sm_clock(), device.memory_clock()) == (1_905, 3_201)
    assert (device.performance_state(), device.persistence_mode()) == ("P0", "Enabled")
    assert device.compute_mode() == "Exclusive Process"
    assert device.total_volatile_uncorrected_ecc_errors() == 1
    assert device.nvlink_link_count() in (0, nvitop.NA)
    processes = {pid: (one.gpu_memory(), one.type) for pid, one in device.processes().items()}
    assert processes == {
        described["processes"][0]["pid"]: (30 * GIB, "C"),
        4_194_304: (10 * GIB, "C"),
        4_194_305: (5 * GIB, "G"),
    }, processes

    assert divided.is_mig_mode_enabled() and not device.is_mig_mode_enabled()
    assert [one.gpu_instance_id() for one in divided.mig_devices()] == [9, 3]
    instance = divided.mig_devices()[1]
    assert (instance.memory_total(), instance.memory_used()) == (10 * GIB, GIB)
    assert lost.memory_used() == nvitop.NA
    assert not nvitop.libnvml.UNKNOWN_FUNCTIONS, nvitop.libnvml.UNKNOWN_FUNCTIONS

    once = subprocess.run(
        [sys.executable, "-m", "nvitop", "-1", "--ascii"],
        capture_output=True,
        text=True,
        check=True,
    )
    for part in ("570.86.15", "00000000:19:00.0", "41C", "250W / 700W", "77%", "30.00GiB", "MIG"):
        assert part in once.stdout, f"nvitop shows no {part}:\n{once.stdout}{once.stderr}"


def cuda_memory(cuda, device, size):
    """Allocates memory of an emulated device in this process."""
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)),
    ):
        assert code == 0, f"CUDA error {code}"
    return address


def check_driver():
    """NVML shows the memory that the emulated driver allocates in this process."""
    import pynvml as nvml

    cuda = ctypes.CDLL("libcuda.so.1")
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetName(device) == "emulated device"
    assert not nvml.nvmlDeviceGetComputeRunningProcesses(device)
    address = cuda_memory(cuda, 1, GIB)
    (own,) = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (own.pid, own.usedGpuMemory) == (os.getpid(), GIB)
    assert nvml.nvmlDeviceGetMemoryInfo(device).used == GIB
    assert cuda.cuMemFree_v2(address) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device).used == 0


def check_account():
    """Ended processes give memory back to the shared account, unless a forked child keeps it."""
    import nvitop

    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        cuda_memory(ctypes.CDLL("libcuda.so.1"), 0, 3 * GIB)
        if (child := os.fork()) == 0:
            time.sleep(600)
        os.write(writer, str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    child = int(os.read(reader, 32))
    device = nvitop.Device(0)
    try:
        found = {pid: process.gpu_memory() for pid, process in device.processes().items()}
        assert found == {parent: 3 * GIB} and device.memory_used() == 3 * GIB, found
        assert not os.path.exists(f"/proc/{parent}")
    finally:
        os.kill(child, 9)
    # The child's parent has ended, so poll until the kernel has closed the child's files.
    for _ in range(3000):
        if not device.memory_used():
            break
        time.sleep(0.01)
    assert device.memory_used() == 0 and not device.processes()


def main():
    here = os.path.abspath(__file__)
    with tempfile.TemporaryDirectory() as folder:
        two = {"GPUHEAP_EMULATED_DEVICE": "h200,4GiB"}
        account = {"GPUHEAP_EMULATED_ACCOUNT": f"{folder}/account"}
        described = {"GPUHEAP_EMULATED_NVML": json.dumps(DESCRIPTION)}
        for check, variables in (
            (check_pynvml, described),
            (check_nvitop, described),
            (check_driver, two),
            (check_account, {"GPUHEAP_EMULATED_DEVICE": "4GiB", **account}),
        ):
            print(check.__name__.removeprefix("check_"), flush=True)
            environment = {
                k: v for k, v in os.environ.items() if not k.startswith("GPUHEAP_EMULATED_")
            }
            subprocess.run(
                [sys.executable, here, check.__name__],
                env={**environment, **variables, "CHECKED_BY": str(os.getpid())},
                check=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]]()
    else:
        main()
