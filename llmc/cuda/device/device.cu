/* The CUDA device's table. */
#include "llmc/cuda/cuda_ops.cuh"

static size_t cuda_fixed_bytes(void) {
    return linear_fixed_bytes() + cuda_context_bytes();
}

static constexpr Device table() {
    Device device{};
    device.open = cuda_open;
    device.name = cuda_name;
    device.peak_flops = cuda_peak_flops;
    device.fixed_bytes = cuda_fixed_bytes;
    device.is_async = true;
    device.alloc = cuda_alloc;
    device.free = cuda_free;
    device.memory_info = cuda_memory_info;
    device.zero = cuda_zero;
    device.zero_rows = cuda_zero_rows;
    device.copy = cuda_copy;
    device.copy_rows = cuda_copy_rows;
    device.upload = cuda_upload;
    device.download = cuda_download;
    device.host_alloc = cuda_host_alloc;
    device.host_free = cuda_host_free;
    device.download_begin = cuda_download_begin;
    device.synchronize = cuda_synchronize;
    device.readback_begin = cuda_readback_begin;
    device.readback_end = cuda_readback_end;
    device.event_record = cuda_event_record;
    device.stream_wait = cuda_stream_wait;
    device.event_wait = cuda_event_wait;
    device.stream_handle = cuda_stream_handle;
    device.peer_memory = &cuda_peer_memory;
    device.timestamp = cuda_timestamp;
    device.seconds_between = cuda_seconds_between;
    device.capture_begin = cuda_capture_begin;
    device.capture_end = cuda_capture_end;
    device.graph_launch = cuda_graph_launch;
    device.graph_free = cuda_graph_free;
    return device;
}

extern constexpr Device device_cuda = table();
