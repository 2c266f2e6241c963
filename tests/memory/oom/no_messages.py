"""Texts that speak of memory, limits or ends of processes, and are no out-of-memory message. In our words."""

from __future__ import annotations

ERRORS = """\
RuntimeError: CUDA error: device-side assert triggered
RuntimeError: CUDA error: an illegal memory access was encountered
RuntimeError: CUDA error: misaligned address
RuntimeError: CUDA error: invalid device ordinal
RuntimeError: CUDA error: no kernel image is available for execution on the device
RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`
RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`
RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 768x768)
RuntimeError: Trying to backward through the graph a second time
RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation
RuntimeError: NCCL error: unhandled system error, NCCL version 2.27
torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3
RuntimeError: Timed out after 600000 ms waiting for a collective
RuntimeError: DataLoader worker (pid 711) exited unexpectedly
RuntimeError: DataLoader worker (pid(s) 4121) exited unexpectedly with exit code 1
ValueError: The model's max length of 4,096 is larger than the position table
ValueError: Please pass a batch size that fits the number of rows
KeyError: 'memory'
IndexError: index 32001 is out of range in self
TypeError: forward() got an unexpected keyword argument 'past_key_values'
AttributeError: 'DynamicCache' object has no attribute 'get_max_length'
ImportError: cannot import name 'MemoryError' from 'torch'
ModuleNotFoundError: No module named 'flash_attn'
FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/batch'
PermissionError: [Errno 13] Permission denied: '/dev/nvidia0'
OSError: [Errno 28] No space left on device
OSError: [Errno 24] Too many open files
OSError: [WinError 126] The specified module could not be found. Error loading "caffe2.dll"
ConnectionResetError: [Errno 104] Connection reset by peer
requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out
huggingface_hub.errors.GatedRepoError: 403 Client Error
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata
jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error: shapes must be equal
triton.compiler.errors.CompilationError: at 14:8: invalid operands
ray.exceptions.RayActorError: The actor died because of an error raised in its creation task
subprocess.CalledProcessError: Command '['make', 'test']' returned non-zero exit status 2.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED, exitcode: 1
Segmentation fault (core dumped)
KeyboardInterrupt
""".splitlines()
LOGS = """\
step 120 | loss 2.113 | lr 3.0e-04 | memory 71.2 GB | 412,331 tokens/s
Epoch 3/10: 100%|██████████| 782/782 [01:12<00:00, 10.81it/s, mem=18.3GB]
{'loss': 1.7312, 'grad_norm': 0.88, 'learning_rate': 1.9e-05, 'epoch': 0.31}
[rank0]: iteration 800/20000 | elapsed time per iteration (ms): 5123.2 | max allocated: 61234.0 | max reserved: 71212.0
memory: 12.31/23.65 GiB, peak 19.02 GiB, no overflow
GPU 0: 79.0 / 80.0 GB used, utilization 98 %
INFO Available KV cache memory: 31.12 GiB
INFO Model loading took 14.98 GiB and 3.2 seconds
INFO GPU KV cache size: 376,800 tokens
INFO Maximum concurrency for 32,768 tokens per request: 11.50x
INFO Graph capturing finished in 21 secs, took 0.72 GiB
INFO gpu_memory_utilization=0.9, max_num_seqs=256, enforce_eager=False
Decode batch. #running-req: 12, #token: 8123, token usage: 0.41, gen throughput (token/s): 812.4, #queue-req: 0
Memory pool end. avail mem=9.31 GB
Capture cuda graph begin. This can take up to several minutes. avail mem=9.01 GB
llama_model_load: CUDA0 model buffer size = 7605.33 MiB
llama_kv_cache: size = 4096.00 MiB (32768 cells, 32 layers)
ggml_cuda_init: found 1 CUDA devices
srun: job 771203 queued and waiting for resources
slurmstepd: error: *** JOB 771203 ON node17 CANCELLED AT 2026-02-01T10:00:00 DUE TO TIME LIMIT ***
sacct: 771203 train COMPLETED 0:0 MaxRSS 41231K
kubectl: pod/train-0 1/1 Running 0 3h
    Last State:     Terminated   Reason: Completed   Exit Code: 0
    Last State:     Terminated   Reason: Error   Exit Code: 1
Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB. The caller indicates that this is not a failure
"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 0}
KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000
ggml_metal_log_allocated_size: warning: current allocated size is greater than the recommended max working set size
systemd[1]: Started Memory pressure monitor.
kernel: nvidia-uvm: Loaded the UVM driver, major device number 511
NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
torch.cuda.memory_allocated() = 3221225472
torch.cuda.memory_summary(): | Allocated memory | 61 GiB | 70 GiB | 811 GiB | 750 GiB |
Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.31s/it]
docker run --shm-size=8g --gpus all --memory=64g image
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
XLA_PYTHON_CLIENT_MEM_FRACTION=.92 python train.py
process 4121 finished with exit code 0
test_memory.py::test_killed_workers_are_restarted PASSED
collected 137 items, 9 deselected
5 errors, 13 warnings, 137 passed in 9.01s
""".splitlines()
PROSE = """\
How much memory does a 7B model need for training?
Our cluster has plenty of memory, and yet the run is slow.
The killed process was restarted by hand after lunch.
He said that the deadline killed the project.
Why is GPU memory not released after del model?
nvidia-smi shows 3 GiB in use although nothing runs.
The memory grows by 20 MiB in each step; is that a leak?
I want to know which optimizer takes the least memory.
Does gradient checkpointing reduce memory at no cost?
We never ran into any limit of memory on that machine.
The job was killed by me, because the loss was not a number.
Please help me to reserve memory for the KV cache.
Reading about the OOM killer in the kernel's documentation.
Allocation of desks on the third floor is full.
The device is out of date, its memory is fine.
Out of curiosity: how is memory allocated on the device?
The pool is open until nine, and the cache is a geocache.
A page about the paging file, its size and its history.
The graph failed to capture what the author meant.
This sentence is out. Of memory it says nothing.
A table of the memory of all cards from 2016 to 2026.
Unified memory on a Mac is shared by CPU and GPU.
What does "max split size" mean, and when does it help?
The worker was promoted; her memory is remarkable.
137 people signed; nine of them by hand.
Exit through door 137 in case of fire.
Vulkan is a volcano, Metal a material, and Ray a name.
Slurm is a scheduler, and also something to drink.
We compare the memory of llamas and of elephants.
ValueError is the name of a class in Python.
The limit was raised, and the run went on to its end.
Is 24 GB enough for QLoRA of a 70B model, or not quite?
My colleague's script prints "memory" in each line.
The estimate says 12.7 GiB, the card has 23.6: it fits.
Fragmentation is a word from the allocator's chapter.
Which is larger, the logits or the gradients?
A prefill of 8,192 tokens took half a second.
The request was refused by the accountant.
CUDA is out; of memory card readers we still have three.
The chip has 16 GB of HBM, and 15.75 of it can be used.
""".splitlines()
CODE = """\
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
if "out of memory" in str(error): raise
import gc; gc.collect(); torch.cuda.empty_cache()
class OutOfMemoryError(RuntimeError): ...
raise NotImplementedError("memory")
assert peak_bytes < 2**30
def test_a_killed_worker(): ...
with pytest.raises(MemoryErrors): ...
os.kill(pid, signal.SIGTERM)
torch.cuda.set_per_process_memory_fraction(0.5)
cudaMalloc(&pointer, size);
enum Status { OK, OUT_OF_RANGE, OUT_OF_TIME };
vkAllocateMemory(device, &info, nullptr, &memory);
resources: {limits: {memory: 64Gi, nvidia.com/gpu: 1}}
#SBATCH --mem=64G --gres=gpu:1
alias oom='dmesg | grep -i oom'
""".splitlines()
IN_A_TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 12, in <module>\n    main()\n{}'
IN_A_LOG = "2026-01-12 08:14:03 | {}\n2026-01-12 08:14:04 | the run goes on"
# Ended from outside, for another reason than memory.
ENDED = [
    "Exit Code:    137\n"
    "Warning  Unhealthy  kubelet  Liveness probe failed: Get http://10.0.0.1:80/health: deadline exceeded",
    "slurmstepd: error: *** JOB 81 ON n1 CANCELLED AT 2026-01-02T06:00:00 DUE TO TIME LIMIT ***\n"
    "srun: error: n1: tasks 0-3: Killed",
]
NO_MESSAGES = [*ERRORS, *map(IN_A_TRACEBACK.format, ERRORS), *LOGS, *map(IN_A_LOG.format, LOGS), *PROSE, *CODE, *ENDED]
