/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for each communicator that uses a plugin. NCCL has one, and plugins rely on it: aws-ofi-nccl has an endpoint
 * for each thread that calls listen or begins to connect. Connections of one endpoint fail together, when one of them
 * is closed with requests under way (as an aborted communicator's are). If all communicators of the user's thread had
 * one endpoint, one of them could end the others. The thread lives as long as the communicator, so that no other thread
 * gets its number.
 *
 * This thread makes the calls that may block, and the calls at the end, so that an abort need not wait for them without
 * limit. A thread that waits for a call sees aborts and dead peers, and gives up a call at the end after
 * HOCKET_LEAVE_TIMEOUT. From then on the plugin's thread is alone. When the blocking call returns, it makes the
 * remaining calls of its list, and then frees the memory that they need. */
#include "../../../base/log.h"
#include "../../../base/thread.h"
#include "plugin.h"

void hk_plugin_thread_init(hk_plugin_thread *t) {
  pthread_mutex_init(&t->lock, NULL);
  hk_cond_init(&t->asked);
  hk_cond_init(&t->answered);
  t->last = &t->first;
}

static void plugin_thread_destroy(hk_plugin_thread *t) {
  pthread_cond_destroy(&t->answered);
  pthread_cond_destroy(&t->asked);
  pthread_mutex_destroy(&t->lock);
}

static void *thread_main(void *arg) {
  hk_plugin_thread *t = arg;
  pthread_setname_np(pthread_self(), "hocket-plugin");
  pthread_mutex_lock(&t->lock);
  for (;;) {
    /* Waits for work or `stop`; a failure does not end this wait. */
    while (!t->first && !t->stop) pthread_cond_wait(&t->asked, &t->lock);
    hk_plugin_job *job = t->first;
    if (!job) break;
    t->first = job->next;
    if (!t->first) t->last = &t->first;
    pthread_mutex_unlock(&t->lock);
    job->call(job->arg);
    pthread_mutex_lock(&t->lock);
    job->over = true;
    pthread_cond_signal(&t->answered);
  }
  void (*forget)(void *owner) = t->forget;
  pthread_mutex_unlock(&t->lock);
  if (forget) {
    plugin_thread_destroy(t);
    forget(t->owner);
  }
  return NULL;
}

/* False: no thread can be created. The caller then makes the call itself, because a connection matters more than this
 * separation. */
static bool plugin_thread_begin(hk_plugin_thread *t) {
  if (!t->made) t->made = hk_thread_start(&t->id, 0, thread_main, t) == 0;
  return t->made;
}

/* Under the lock. */
static void plugin_thread_put(hk_plugin_thread *t, hk_plugin_job *job) {
  job->next = NULL;
  *t->last = job;
  t->last = &job->next;
  pthread_cond_signal(&t->asked);
}

hk_status hk_plugin_thread_call(hk_plugin_thread *t, const hk_wait_env *env, hk_plugin_job *job) {
  hk_status rc = HK_OK;
  hk_waiter w;
  if (!plugin_thread_begin(t)) {
    job->call(job->arg);
    return HK_OK;
  }
  pthread_mutex_lock(&t->lock);
  plugin_thread_put(t, job);
  hk_wait_begin(&w, env);
  while (!job->over && rc == HK_OK) rc = hk_wait_cond(&w, &t->answered, &t->lock);
  if (job->over) rc = HK_OK;
  pthread_mutex_unlock(&t->lock);
  return rc;
}

static hk_status plugin_thread_give_up(void *limit_ns, uint64_t waited_ns) {
  return waited_ns < *(const uint64_t *)limit_ns ? HK_OK : HK_ERR_SYSTEM;
}

bool hk_plugin_thread_close(hk_plugin_thread *t, hk_plugin_job *job, int64_t seconds, const char *whose) {
  uint64_t limit_ns = (uint64_t)seconds * 1000000000u;
  const hk_wait_env env = {.check = plugin_thread_give_up, .arg = &limit_ns};
  if (!t->alone && hk_plugin_thread_call(t, &env, job) == HK_OK) return true;
  pthread_mutex_lock(&t->lock);
  if (t->alone) plugin_thread_put(t, job);
  bool first = !t->alone;
  t->alone = true;
  pthread_mutex_unlock(&t->lock);
  if (first)
    HK_WARN("%s has not returned from a call for %lld s (HOCKET_LEAVE_TIMEOUT): the communicator ends without it, and "
            "what the call uses is freed when it returns",
            whose, (long long)seconds);
  return false;
}

bool hk_plugin_thread_end(hk_plugin_thread *t, void (*forget)(void *owner), void *owner) {
  if (!t->made) {
    plugin_thread_destroy(t);
    return true;
  }
  pthread_mutex_lock(&t->lock);
  const bool alone = t->alone;
  if (alone) {
    t->forget = forget;
    t->owner = owner;
    pthread_detach(t->id);
  }
  t->stop = true;
  pthread_cond_signal(&t->asked);
  pthread_mutex_unlock(&t->lock); /* if the thread is alone, `t` may be freed from here on */
  if (alone) return false;
  pthread_join(t->id, NULL);
  plugin_thread_destroy(t);
  return true;
}
