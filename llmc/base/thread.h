/* Threads beside the main one. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

/* Starts a thread in which all signals are blocked: they are the main thread's affair. False, with errno: the system has none. */
bool thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);
